//! The links and the headings of a Markdown file.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use xshell::{Shell, cmd};

/// A link to a file of the repository, or to a heading.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    /// The bytes of the whole link in the text: `[label](target)`.
    pub range: Range<usize>,
    /// The target as it is written.
    pub target: String,
}

/// Returns the links of a text, in order, without those that lead to other sites.
pub fn links(text: &str) -> Vec<Link> {
    parser(text)
        .into_offset_iter()
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                if !dest_url.contains(':') =>
            {
                Some(Link {
                    range,
                    target: dest_url.into_string(),
                })
            }
            _ => None,
        })
        .collect()
}

/// Returns the anchors of the headings of a text, as GitHub and mdBook make them.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut heading: Option<String> = None;
    for event in parser(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(words)) => words.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(words)) => {
                let anchor = anchor(words);
                let repeated = (1..).map(|n| format!("{anchor}-{n}"));
                let unused = std::iter::once(anchor.clone())
                    .chain(repeated)
                    .find(|name| !anchors.contains(name));
                anchors.extend(unused);
                heading = None;
            }
            _ => {}
        }
    }
    anchors
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// Splits a target into the file that it names, relative to the root of the repository, and its
/// anchor. `page` is the file with the link.
pub fn resolve(page: &Path, target: &str) -> (PathBuf, Option<String>) {
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (target, None),
    };
    if file.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    (path, anchor)
}

/// Returns the links of all Markdown files that lead to no file, or to no heading of a page.
pub fn dead_links(sh: &Shell) -> Result<Vec<String>> {
    let files = cmd!(sh, "git ls-files --cached --others --exclude-standard *.md")
        .quiet()
        .read()?;
    let root = sh.current_dir();
    let read = |file: &str| {
        let text = fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        Ok((file.into(), text))
    };
    let pages: HashMap<PathBuf, String> = files.lines().map(read).collect::<Result<_>>()?;
    ensure!(!pages.is_empty(), "no page was found");
    Ok(dead_among(&root, &pages))
}

fn dead_among(root: &Path, pages: &HashMap<PathBuf, String>) -> Vec<String> {
    let mut dead = Vec::new();
    for (page, text) in pages {
        for link in links(text) {
            let (file, anchor) = resolve(page, &link.target);
            let lives = match (anchor, pages.get(&file)) {
                (Some(anchor), Some(text)) => anchors(text).contains(&anchor),
                _ => root.join(&file).exists(),
            };
            if !lives {
                dead.push(format!("{}: {}", page.display(), link.target));
            }
        }
    }
    dead.sort();
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_at_root() -> Result<Shell> {
        let sh = Shell::new()?;
        sh.change_dir(idem_cluster::workspace_root());
        Ok(sh)
    }

    #[test]
    fn every_link_of_the_documentation_leads_somewhere() -> Result<()> {
        let dead = dead_links(&shell_at_root()?)?;
        ensure!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
        Ok(())
    }

    #[test]
    fn dead_links_are_reported() {
        let root = Path::new("/nowhere");
        let pages = HashMap::from([
            (
                "docs/a.md".into(),
                "# One\n[b](b.md#two) [up](../c.md)".to_owned(),
            ),
            (
                "docs/b.md".into(),
                "# `Two`\n[gone](#three) [self](#two)".to_owned(),
            ),
            (
                "c.md".into(),
                "[a](docs/a.md#one) [site](https://example.com)".to_owned(),
            ),
        ]);
        assert_eq!(
            dead_among(root, &pages),
            ["docs/a.md: ../c.md", "docs/b.md: #three"]
        );
    }

    #[test]
    fn book_contains_every_page_of_docs() -> Result<()> {
        let root = shell_at_root()?.current_dir();
        let summary = Path::new("docs/SUMMARY.md");
        let text = fs::read_to_string(root.join(summary))?;
        let chapters: HashSet<PathBuf> = links(&text)
            .iter()
            .map(|link| resolve(summary, &link.target).0)
            .collect();
        for entry in fs::read_dir(root.join("docs"))? {
            let page = Path::new("docs").join(entry?.file_name());
            let is_page = page.extension().is_some_and(|extension| extension == "md");
            ensure!(
                !is_page || page == summary || chapters.contains(&page),
                "{} is not in docs/SUMMARY.md",
                page.display()
            );
        }
        Ok(())
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# SeaORM, diesel & `sqlx`\n## Twice\n## Twice\n```sh\n# no heading\n```";
        let expected = ["seaorm-diesel--sqlx", "twice", "twice-1"];
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }
}
