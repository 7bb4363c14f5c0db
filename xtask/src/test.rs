//! The tests, from the quick to the thorough.
//!
//! `cargo xtask test` is what CI runs. `cargo xtask test everything` adds what repeats the same tests in another setting.

use std::fs;

use anyhow::Result;

use crate::build::{self, Variant};
use crate::context::Context;
use crate::step;

/// What needs no features.
const PLAIN: [&str; 14] = [
    "--package",
    "idem-core",
    "--package",
    "idem-cluster",
    "--package",
    "idem-brokers",
    "--package",
    "idem-relay",
    "--package",
    "idem-compile-fail",
    "--package",
    "idem-guides",
    "--package",
    "xtask",
];

/// The client with every broker.
const CLIENT: [&str; 3] = ["--package", "idem-client", "--all-features"];

/// With it the tests of the client reach their server through PgBouncer in transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

/// Deterministic tests of races: they need the build with pause points.
const RACES: &str = "races";

/// The biggest test binary runs last and alone, so that its summary ends the output.
const LAST: &str = "server";

/// The filter that stands for all tests in all settings.
const EVERYTHING: &str = "everything";

pub fn test(context: &Context, filter: Option<&str>) -> Result<()> {
    let everything = filter == Some(EVERYTHING);
    let filter = filter.filter(|_| !everything);
    build::build(context)?;
    build::build_variant(context, Variant::PausePoints)?;

    let mut plain = context.cargo(["test"]);
    plain.args(PLAIN).args(filter);
    step::show(plain)?;

    let mut client = context.cargo(["test"]);
    client.args(CLIENT).args(filter);
    step::show(client)?;
    if everything {
        let mut proxied = context.cargo(["test"]);
        proxied.args(CLIENT).args(["--tests"]).env(THROUGH_PGBOUNCER, "1");
        step::show(proxied)?;
    }

    let mut others = context.cargo(["test", "--package", "idem-tests", "--lib", "--bins"]);
    for name in other_binaries(context)? {
        others.args(["--test", &name]);
    }
    others.args(filter);
    step::show(others)?;
    let mut races = context.cargo(["test", "--package", "idem-tests", "--test", RACES]);
    races
        .args(filter)
        .env("IDEM_PG_INSTALL", context.install_root(Variant::PausePoints));
    step::show(races)?;

    let mut last = context.cargo(["test", "--package", "idem-tests", "--test", LAST]);
    last.args(filter);
    step::show(last)
}

/// The test binaries of idem-tests that need nothing special: files, and folders with a `main.rs`, as cargo finds them.
fn other_binaries(context: &Context) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(context.root.join("tests/tests"))? {
        let path = entry?.path();
        let is_binary = path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str())
            && is_binary
            && ![RACES, LAST].contains(&name)
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
