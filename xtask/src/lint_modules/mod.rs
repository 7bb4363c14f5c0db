//! `cargo xtask lint-modules`: fails when files of a published crate import each other in a circle.
//!
//! `source` reads which names a file declares and which paths it uses, `resolve` finds the file
//! that defines the name at the end of a path, and `circles` searches the resulting graph.
//!
//! The nodes are files. A re-export is not a definition: a path through it leads to the file that
//! defines the name. So a `mod.rs` or a crate root that only declares and re-exports modules is
//! never part of a circle. Code under `#[cfg(test)]` does not count. The arguments of macros count.
//!
//! A call of a method has no path, so this lint does not see the call. It sees the type of the
//! receiver where the file names this type.

mod circles;
mod resolve;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::context::Context;
use circles::Graph;
use resolve::uses;
use source::Crate;

/// The directories of the checked crates: all published crates and the extension.
const CRATES: [&str; 11] = [
    "extension/core",
    "extension",
    "client",
    "runtime",
    "integrations/http",
    "integrations/kafka",
    "integrations/nats",
    "integrations/postgres",
    "integrations/rabbitmq",
    "integrations/sqlx",
    "relay",
];

/// The text of each source file of a crate, by its path below `src`.
type Files = BTreeMap<String, String>;

/// Checks all crates. Fails when the files of a crate form a circle, and lists the lines that make
/// the circle.
pub fn lint(context: &Context) -> Result<()> {
    let mut circles = 0;
    for directory in CRATES {
        let files = read(context, directory)?;
        let graph = graph(&files).with_context(|| format!("cannot read {directory}"))?;
        for circle in graph.circles() {
            circles += 1;
            println!("{directory}: {} files form a circle:", circle.files.len());
            for used in circle.shortest {
                println!(
                    "    {directory}/src/{}:{} uses {}",
                    used.from, used.line, used.to
                );
            }
            println!("    all files of the circle: {}", circle.files.join(", "));
        }
    }
    println!("{circles} circles of files in {} crates", CRATES.len());
    ensure!(circles == 0, "files import each other in a circle");
    Ok(())
}

/// Returns the files that git tracks or would add. A file that is deleted but not committed yet is
/// skipped.
fn read(context: &Context, directory: &str) -> Result<Files> {
    let source = format!("{directory}/src");
    let sh = &context.sh;
    let listed = cmd!(
        sh,
        "git ls-files --cached --others --exclude-standard {source}"
    )
    .quiet()
    .read()?;
    let mut files = Files::new();
    for path in listed.lines().filter(|path| path.ends_with(".rs")) {
        let on_disk = context.root.join(path);
        if on_disk.exists() {
            let text =
                fs::read_to_string(&on_disk).with_context(|| format!("cannot read {path}"))?;
            let below = Path::new(path).strip_prefix(&source)?;
            files.insert(below.display().to_string(), text);
        }
    }
    Ok(files)
}

/// Returns which file uses which, for each crate root among the files.
fn graph(files: &Files) -> Result<Graph> {
    let mut graph = Graph::default();
    for root in ["lib.rs", "main.rs"] {
        if files.contains_key(root) {
            let tree = Crate::parse(files, root)?;
            graph.extend(uses(&tree));
        }
    }
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the files of each circle among these files.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        let circles = graph(&files).unwrap().circles();
        circles.into_iter().map(|circle| circle.files).collect()
    }

    #[test]
    fn two_files_that_import_each_other_form_a_circle() {
        let lib = ("lib.rs", "mod a; mod b;");
        let b = ("b.rs", "pub struct B;");
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        assert!(circles(&[lib, a, b]).is_empty());
        let b = ("b.rs", "use super::a::A; pub struct B(Box<A>);");
        assert_eq!(circles(&[lib, a, b]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn three_files_in_a_ring_form_one_circle() {
        let lib = ("lib.rs", "mod a; mod b; mod c; mod d;");
        let a = ("a.rs", "use crate::b; pub fn a() { b::b() }");
        let b = ("b.rs", "pub fn b() { crate::c::c() }");
        let d = ("d.rs", "use crate::{a::a, b::b}; pub fn d() { a(); b() }");
        let c = ("c.rs", "pub fn c() {}");
        assert!(circles(&[lib, a, b, c, d]).is_empty());
        let c = ("c.rs", "use crate::a::a; pub fn c() { a() }");
        assert_eq!(circles(&[lib, a, b, c, d]), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn import_through_a_reexport_leads_to_the_definition() {
        let lib = ("lib.rs", "mod deep; mod b; pub use deep::A;");
        let deep = ("deep/mod.rs", "mod a; pub use a::A;");
        let a = (
            "deep/a.rs",
            "use crate::b::B; pub struct A; pub fn a(_: B) {}",
        );
        let b = ("b.rs", "use crate::A; pub struct B(A);");
        assert_eq!(circles(&[lib, deep, a, b]), [["b.rs", "deep/a.rs"]]);
        let b = ("b.rs", "pub struct B;");
        assert!(circles(&[lib, deep, a, b]).is_empty());
    }

    #[test]
    fn import_through_a_glob_leads_to_the_definition() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::*;");
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        let b = ("b.rs", "use crate::*; pub struct B(Box<A>);");
        assert_eq!(circles(&[lib, a, b]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn module_that_uses_what_its_child_uses_is_a_circle() {
        let lib = ("lib.rs", "mod outer;");
        let inner = (
            "outer/inner.rs",
            "use super::Outer; pub struct Inner(Box<Outer>);",
        );
        let outer = (
            "outer.rs",
            "mod inner; pub use inner::Inner; pub struct Outer;",
        );
        assert!(circles(&[lib, inner, outer]).is_empty());
        let outer = (
            "outer.rs",
            "mod inner; pub use inner::Inner; pub struct Outer(Inner);",
        );
        assert_eq!(
            circles(&[lib, inner, outer]),
            [["outer.rs", "outer/inner.rs"]]
        );
    }

    #[test]
    fn reexport_of_a_sibling_counts() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "pub use crate::b::B; pub struct A;");
        let b = ("b.rs", "use crate::a::A; pub struct B(A);");
        assert_eq!(circles(&[lib, a, b]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn tests_do_not_count() {
        let lib = ("lib.rs", "mod a; mod b; #[cfg(test)] mod absent;");
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        let b = (
            "b.rs",
            "pub struct B; #[cfg(test)] use crate::a::A; \
             #[cfg(test)] mod tests { use crate::a; fn a() -> a::A { todo!() } } \
             impl B { #[cfg(all(test, unix))] fn a() -> crate::a::A { todo!() } }",
        );
        assert!(circles(&[lib, a, b]).is_empty());
    }

    #[test]
    fn arguments_of_macros_count() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; pub fn name(_: B) {}");
        let b = (
            "b.rs",
            "use crate::a; pub struct B; fn log() { tracing::info!(name = a::name(B)) }",
        );
        assert_eq!(circles(&[lib, a, b]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn visibility_and_documentation_do_not_count() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        let b = (
            "b.rs",
            "/// See [`A`](crate::a::A).\npub(in crate) struct B;",
        );
        assert!(circles(&[lib, a, b]).is_empty());
    }
}
