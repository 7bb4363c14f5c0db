//! What must not compile, or not without a warning: `ui`, each case with what the compiler says
//! about it.
//!
//! The texts are those of the toolchain that the workspace is built with. After a new one look at
//! them and write them anew: `TRYBUILD=overwrite cargo test -p idem-compile-fail`.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
