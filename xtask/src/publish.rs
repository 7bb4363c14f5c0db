//! Checks the crates that are published. Nothing is uploaded.
//!
//! `cargo xtask publish` reads manifests and file lists, so it takes seconds and belongs to CI.
//! `--dry-run` also builds each crate from its packed files, in the order of their dependencies.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::context::Context;
use crate::step;

/// The crates that are published, each after the crates that it depends on.
const PUBLISHED: [&str; 10] = [
    "idem-core",
    "idem-client",
    "idem-runtime",
    "idem-http",
    "idem-kafka",
    "idem-nats",
    "idem-postgres",
    "idem-rabbitmq",
    "idem-sqlx",
    "idem-relay",
];

/// The files that each package contains.
const FILES: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// The part of `cargo metadata` that the checks read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
struct Package {
    name: String,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    rust_version: Option<String>,
    /// The registries that the package may be published to. An empty list means none, and a missing
    /// list means all.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
    manifest_path: String,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    kind: Option<String>,
    path: Option<String>,
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty())
    }
}

/// Checks the published crates, and builds them from their packed files with `dry_run`.
pub fn publish(context: &Context, dry_run: bool) -> Result<()> {
    let text = context
        .cargo(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(text.status.success(), "cargo metadata failed");
    let metadata: Metadata =
        serde_json::from_slice(&text.stdout).context("cannot read the output of cargo metadata")?;
    let mut problems = problems_of(&metadata.packages);
    for package in metadata
        .packages
        .iter()
        .filter(|package| package.is_published())
    {
        problems.extend(problems_of_files(
            &package.name,
            &files(context, &package.name)?,
        ));
        problems.extend(problems_of_readme(package)?);
    }
    ensure!(
        problems.is_empty(),
        "these crates cannot be published:\n{}",
        problems.join("\n")
    );
    eprintln!(
        "{} crates can be published: {}",
        PUBLISHED.len(),
        PUBLISHED.join(", ")
    );
    if dry_run {
        let mut build = context.cargo(["publish", "--dry-run", "--allow-dirty"]);
        for name in PUBLISHED {
            build.args(["--package", name]);
        }
        step::show(build)?;
    }
    Ok(())
}

/// Returns the files that the package of this crate contains.
fn files(context: &Context, name: &str) -> Result<BTreeSet<String>> {
    let listed = context
        .cargo(["package", "--list", "--allow-dirty", "--package", name])
        .output()
        .context("cannot run cargo package")?;
    ensure!(
        listed.status.success(),
        "cargo package --list failed for {name}: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let text = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns what is wrong with the manifests: a crate that is neither published nor marked, a
/// missing field, and a dependency that a registry would not have.
fn problems_of(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let name = &package.name;
        let is_listed = PUBLISHED.contains(&&**name);
        if is_listed != package.is_published() {
            problems.push(format!(
                "{name}: is in the list of published crates: {is_listed}, but its manifest says \
                 the opposite (publish = false)"
            ));
        }
        if is_listed {
            problems.extend(problems_of_manifest(package));
        }
    }
    for name in PUBLISHED {
        if !packages.iter().any(|package| package.name == name) {
            problems.push(format!("{name}: no crate of the workspace has this name"));
        }
    }
    problems
}

fn problems_of_manifest(package: &Package) -> Vec<String> {
    let name = &package.name;
    let fields = [
        ("description", &package.description),
        ("license", &package.license),
        ("readme", &package.readme),
        ("rust-version", &package.rust_version),
    ];
    let missing = fields
        .into_iter()
        .filter(|(_, value)| value.is_none())
        .map(|(field, _)| format!("{name}: the field {field} is missing"));
    let place = |name: &str| PUBLISHED.iter().position(|published| *published == name);
    // A registry removes development dependencies that have only a path.
    let needed = package.dependencies.iter().filter(|dependency| {
        dependency.path.is_some() && dependency.kind.as_deref() != Some("dev")
    });
    let unpublished = needed.filter_map(|dependency| {
        let other = &dependency.name;
        if dependency.req == "*" {
            Some(format!(
                "{name}: the dependency {other} has a path and no version"
            ))
        } else if place(other).is_none_or(|earlier| Some(earlier) >= place(name)) {
            Some(format!(
                "{name}: the dependency {other} is not published before it"
            ))
        } else {
            None
        }
    });
    missing.chain(unpublished).collect()
}

/// Returns what is wrong with the files of a package.
fn problems_of_files(name: &str, files: &BTreeSet<String>) -> Vec<String> {
    let missing = FILES
        .into_iter()
        .filter(|file| !files.contains(*file))
        .map(|file| format!("{name}: its package has no {file}"));
    let mut problems: Vec<_> = missing.collect();
    if !files
        .iter()
        .any(|file| file.starts_with("src/") && file.ends_with(".rs"))
    {
        problems.push(format!("{name}: its package has no code"));
    }
    problems
}

/// Returns the links of a README to files of the repository. The page of a registry has no such
/// files.
fn problems_of_readme(package: &Package) -> Result<Vec<String>> {
    let Some(readme) = &package.readme else {
        return Ok(Vec::new());
    };
    let directory = Path::new(&package.manifest_path).parent();
    let path = directory
        .context("a manifest has no directory")?
        .join(readme);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(links_to_files(&text)
        .into_iter()
        .map(|link| {
            format!(
                "{}: its README links to {link}, a file of the repository",
                package.name
            )
        })
        .collect())
}

/// Returns the targets of links to files: they have a slash or end with `.md`, and have no `://`.
/// Another target is a URL or an item of the Rust documentation, such as `module::item`.
fn links_to_files(markdown: &str) -> Vec<String> {
    pulldown_cmark::Parser::new(markdown)
        .filter_map(|event| match event {
            pulldown_cmark::Event::Start(pulldown_cmark::Tag::Link { dest_url, .. }) => {
                Some(dest_url.to_string())
            }
            _ => None,
        })
        .filter(|link| !link.contains("://") && (link.contains('/') || link.ends_with(".md")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, req: &str, kind: Option<&str>) -> Dependency {
        Dependency {
            name: name.to_owned(),
            req: req.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some("/somewhere".to_owned()),
        }
    }

    /// Returns a manifest without a problem.
    fn package(name: &str) -> Package {
        let text = || Some("text".to_owned());
        Package {
            name: name.to_owned(),
            description: text(),
            license: text(),
            readme: text(),
            rust_version: text(),
            publish: None,
            dependencies: Vec::new(),
            manifest_path: "/somewhere/Cargo.toml".to_owned(),
        }
    }

    fn all() -> Vec<Package> {
        PUBLISHED.map(package).to_vec()
    }

    #[test]
    fn complete_manifests_have_no_problem() {
        assert_eq!(problems_of(&all()), Vec::<String>::new());
        let mut runtime = package("idem-runtime");
        runtime.dependencies = vec![
            dependency("idem-client", "^1.0.0", None),
            dependency("idem-testkit", "*", Some("dev")),
        ];
        assert_eq!(problems_of_manifest(&runtime), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_wrong_manifest_is_found() {
        let mut packages = all();
        packages[0].publish = Some(Vec::new());
        packages.push(package("idem-testkit"));
        packages.remove(1);
        let problems = problems_of(&packages).join("\n");
        for name in [
            "idem-core: is in",
            "idem-testkit: is in",
            "idem-client: no crate",
        ] {
            assert!(problems.contains(name), "{name}: {problems}");
        }

        let mut client = package("idem-client");
        client.license = None;
        client.dependencies = vec![
            dependency("idem-core", "*", None),
            dependency("idem-runtime", "^1.0.0", None),
            dependency("idem-cluster", "^1.0.0", Some("build")),
        ];
        assert_eq!(
            problems_of_manifest(&client),
            [
                "idem-client: the field license is missing",
                "idem-client: the dependency idem-core has a path and no version",
                "idem-client: the dependency idem-runtime is not published before it",
                "idem-client: the dependency idem-cluster is not published before it",
            ]
        );
    }

    #[test]
    fn package_without_licence_or_code_is_found() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let whole = [
            "Cargo.toml",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "README.md",
            "src/lib.rs",
        ];
        assert_eq!(
            problems_of_files("idem", &files(&whole)),
            Vec::<String>::new()
        );
        assert_eq!(
            problems_of_files("idem", &files(&["Cargo.toml", "LICENSE-MIT", "README.md"])),
            [
                "idem: its package has no LICENSE-APACHE",
                "idem: its package has no code"
            ]
        );
    }

    #[test]
    fn links_to_files_are_found_and_links_to_items_are_not() {
        let readme = "[a](docs/a.md) [b](../README.md) [c](https://example.org/c) \
                      [`D`](relay::D) [e](extract())";
        assert_eq!(links_to_files(readme), ["docs/a.md", "../README.md"]);
    }
}
