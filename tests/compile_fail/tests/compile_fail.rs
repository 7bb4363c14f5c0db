//! Code that must not compile, or must not compile without a warning: the cases in `ui`, each with
//! the output of the compiler.
//!
//! The output is that of the toolchain of the workspace. After a change of the toolchain, review
//! the output and write it again: `TRYBUILD=overwrite cargo test -p idem-compile-fail`.

use std::collections::BTreeSet;
use std::fs;

/// Returns the names of the files in `ui` with this ending.
fn names(ending: &str) -> BTreeSet<String> {
    let files = fs::read_dir("ui").unwrap().map(|file| file.unwrap().path());
    let of_ending = files.filter(|file| file.extension().is_some_and(|found| found == ending));
    let stems = of_ending.map(|file| file.file_stem().unwrap().display().to_string());
    stems.collect()
}

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
    // trybuild passes without a case, and does not see the output of a case that was removed.
    let cases = names("rs");
    assert!(!cases.is_empty());
    assert_eq!(names("stderr"), cases);
}
