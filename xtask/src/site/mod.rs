//! The documentation as a book, which mdBook makes: `docs/SUMMARY.md` has its pages in their order.
//!
//! The pages are copied with their folders, because some of them are outside of `docs`. A link to a
//! file that is no page of the book becomes plain text.

mod links;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::context::Context;
use crate::{step, tool};
use links::{Link, dead_links, links, resolve};

const MDBOOK: &str = "0.5.4";
const SUMMARY: &str = "docs/SUMMARY.md";
/// The pictures of the pages.
const PICTURES: &str = "docs/benchmarks";

/// Makes the book, and prints where it is. Fails if a page has a dead link.
pub fn site(context: &Context) -> Result<()> {
    let dead = dead_links(&context.sh)?;
    ensure!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    let mdbook = tool::install(context, "mdbook", MDBOOK)?;
    let site = context.target().join("site");
    let sources = site.join("src");
    if site.exists() {
        fs::remove_dir_all(&site)?;
    }
    fs::create_dir_all(sources.join(PICTURES))?;
    fs::copy(context.root.join("docs/book.toml"), site.join("book.toml"))?;
    for picture in fs::read_dir(context.root.join(PICTURES))? {
        let picture = picture?;
        fs::copy(
            picture.path(),
            sources.join(PICTURES).join(picture.file_name()),
        )?;
    }

    let summary = read(context, Path::new(SUMMARY))?;
    let chapters: Vec<PathBuf> = links(&summary)
        .iter()
        .map(|link| resolve(Path::new(SUMMARY), &link.target).0)
        .collect();
    let known: HashSet<&Path> = chapters.iter().map(PathBuf::as_path).collect();
    for page in &chapters {
        let text = read(context, page)?;
        let copy = sources.join(in_book(page));
        fs::create_dir_all(copy.parent().context("a page has no folder")?)?;
        fs::write(
            copy,
            with_links(&text, |link| link_in_page(page, link, &known)),
        )?;
    }
    let summary = with_links(&summary, |link| {
        let (page, _) = resolve(Path::new(SUMMARY), &link.target);
        Some(in_book(&page).display().to_string())
    });
    fs::write(sources.join("SUMMARY.md"), summary)?;

    let mut build = Command::new(mdbook);
    build.arg("build").arg(&site);
    step::run("building the book", build, "correct what mdBook reports")?;
    println!("{}", site.join("book/index.html").display());
    Ok(())
}

fn read(context: &Context, page: &Path) -> Result<String> {
    fs::read_to_string(context.root.join(page))
        .with_context(|| format!("cannot read {}", page.display()))
}

/// Returns the path of a page in the book. mdBook calls the page of a folder `index`.
fn in_book(page: &Path) -> PathBuf {
    if page.ends_with("README.md") {
        page.with_file_name("index.md")
    } else {
        page.to_owned()
    }
}

/// Returns the target of a link of a page in the book, or `None` if the link leads out of the book.
fn link_in_page(page: &Path, link: &Link, known: &HashSet<&Path>) -> Option<String> {
    let (file, _) = resolve(page, &link.target);
    let is_in_book = known.contains(file.as_path()) || file.starts_with(PICTURES);
    is_in_book.then(|| link.target.replace("README.md", "index.md"))
}

/// Returns the text with other targets for its links. A link without a target becomes its label.
fn with_links(text: &str, target: impl Fn(&Link) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut end = 0;
    for link in links(text) {
        let written = &text[link.range.clone()];
        let Some(label) = written.strip_suffix(&format!("]({})", link.target)) else {
            continue;
        };
        result.push_str(&text[end..link.range.start]);
        end = link.range.end;
        match target(&link) {
            Some(target) => result.push_str(&format!("{label}]({target})")),
            None => result.push_str(label.trim_start_matches('[')),
        }
    }
    result.push_str(&text[end..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_become_text() {
        let known = HashSet::from([Path::new("docs/a.md"), Path::new("runtime/README.md")]);
        let text = "[a](a.md#x), [**b**](../tests/b.rs) and [Rust](../runtime/README.md).";
        let page = Path::new("docs/page.md");
        assert_eq!(
            with_links(text, |link| link_in_page(page, link, &known)),
            "[a](a.md#x), **b** and [Rust](../runtime/index.md)."
        );
    }
}
