//! The root of the crate has few names.

#[test]
fn root_has_at_most_40_names() {
    idem_testkit::names::assert_few_names(
        include_str!("../src/lib.rs"),
        &["Claim", "Executor", "relay", "send", "tokio_postgres"],
    );
}
