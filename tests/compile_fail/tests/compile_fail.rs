//! Code that must not compile, or must not compile without a warning: the cases in `ui`, each with
//! the output of the compiler.
//!
//! The output is that of the toolchain of the workspace. After a change of the toolchain, review
//! the output and write it again: `TRYBUILD=overwrite cargo test -p idem-compile-fail`.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
