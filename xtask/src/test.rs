//! Runs the tests: the set of CI, or everything.
//!
//! `cargo xtask test` runs the set of CI. `cargo xtask test everything` runs the stress tests for
//! longer, the tests that the set of CI ignores, the client through PgBouncer, and the other Debian
//! suites.

use std::fs;
use std::num::NonZero;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, Variant};
use crate::context::Context;
use crate::suite::Suite;
use crate::{chroot, step};

/// The packages that need no features.
const PLAIN: [&str; 16] = [
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
    "idem-fixtures",
    "--package",
    "idem-guides",
    "--package",
    "xtask",
];

/// The client, the runtime and the integrations, with all features.
const CLIENT: [&str; 15] = [
    "--package",
    "idem-client",
    "--package",
    "idem-http",
    "--package",
    "idem-integration-tests",
    "--package",
    "idem-kafka",
    "--package",
    "idem-nats",
    "--package",
    "idem-rabbitmq",
    "--package",
    "idem-runtime",
    "--all-features",
];

/// The variable that makes the tests of the client connect through PgBouncer in transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

/// The variable with the duration of the stress tests. Without it they run for 15 seconds.
const STRESS_SECONDS: &str = "IDEM_TEST_STRESS_SECONDS";
const LONG_STRESS_SECONDS: &str = "120";

/// The variable with the number of tests that run at the same time in one binary.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The number of tests that run at the same time, per core. Most tests wait for servers and use
/// little of a core.
const TESTS_PER_CORE: usize = 3;

/// The largest number of tests that run at the same time, because tests of one binary share the
/// connections of one server.
const MAX_TESTS: usize = 8;

/// The test binary with the deterministic tests of races. It needs the build with pause points.
const RACES: &str = "races";

/// The largest test binary. It runs last and alone, so that its summary ends the output.
const LAST: &str = "server";

/// The filter that selects all tests in all settings.
const EVERYTHING: &str = "everything";

/// The tests that run.
#[derive(Clone, Copy, Debug)]
enum Extent<'f> {
    /// The set of CI, or only the tests of this set with the filter in their name.
    Ci {
        filter: Option<&'f str>,
    },
    Everything,
}

/// One run of cargo.
struct Step {
    name: String,
    command: Command,
}

pub fn test(context: &Context, filter: Option<&str>) -> Result<()> {
    let extent = match filter {
        Some(EVERYTHING) => Extent::Everything,
        filter => Extent::Ci { filter },
    };
    let others = match extent {
        Extent::Everything => other_suites(context.suite)?,
        Extent::Ci { .. } => Vec::new(),
    };
    build::build(context)?;
    build::build_variant(context, Variant::PausePoints)?;
    if let Extent::Ci { .. } = extent {
        eprintln!(
            "`cargo xtask test {EVERYTHING}` also runs: stress tests of {LONG_STRESS_SECONDS} s \
             each, the tests shown as \"ignored\", the client's tests through PgBouncer, the other \
             Debian suites"
        );
    }
    let mut steps = steps(context, extent)?;
    for suite in others {
        steps.push(in_suite(context, suite)?);
    }
    run(steps)
}

/// Returns the suites that `everything` runs in chroots. Inside a chroot the list is empty, because
/// chroots do not nest.
fn other_suites(suite: Suite) -> Result<Vec<Suite>> {
    if chroot::is_inside() {
        eprintln!("in the chroot of Debian {suite}: the other suites run only outside of it");
        return Ok(Vec::new());
    }
    let others: Vec<_> = Suite::ALL
        .into_iter()
        .filter(|other| *other != suite)
        .collect();
    // The need for root is checked before the first test, because `everything` takes hours.
    others.iter().copied().try_for_each(chroot::ensure_root)?;
    Ok(others)
}

/// Returns the runs of cargo, the largest test binary last.
fn steps(context: &Context, extent: Extent) -> Result<Vec<Step>> {
    let mut steps = vec![
        cargo_test(context, extent, "units", &PLAIN),
        cargo_test(context, extent, "client", &CLIENT),
    ];
    if let Extent::Everything = extent {
        let mut proxied = cargo_test(context, extent, "client through PgBouncer", &CLIENT);
        proxied.command.arg("--tests").env(THROUGH_PGBOUNCER, "1");
        steps.push(proxied);
    }
    let mut others = vec!["--lib".to_owned(), "--bins".to_owned()];
    for name in other_binaries(context)? {
        others.extend(["--test".to_owned(), name]);
    }
    steps.push(live(context, extent, "live servers", &others));
    let mut races = live(context, extent, RACES, &["--test", RACES]);
    races.command.env(
        "IDEM_PG_INSTALL",
        context.install_root(Variant::PausePoints),
    );
    steps.push(races);
    steps.push(live(context, extent, LAST, &["--test", LAST]));
    Ok(steps)
}

/// Returns a run of the tests of these packages.
fn cargo_test(context: &Context, extent: Extent, name: &str, packages: &[&str]) -> Step {
    let mut command = context.cargo(["test", "--no-fail-fast"]);
    command.args(packages);
    if std::env::var_os(TEST_THREADS).is_none() {
        command.env(TEST_THREADS, test_threads().to_string());
    }
    if let Extent::Ci { filter } = extent {
        command.args(filter);
    }
    Step {
        name: name.to_owned(),
        command,
    }
}

fn test_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    MAX_TESTS.min(TESTS_PER_CORE * cores)
}

/// Returns a run of tests of the package idem-tests, which has the stress tests and the ignored
/// tests.
fn live<A: AsRef<str>>(context: &Context, extent: Extent, name: &str, binaries: &[A]) -> Step {
    let mut arguments = vec!["--package", "idem-tests"];
    arguments.extend(binaries.iter().map(AsRef::as_ref));
    let mut step = cargo_test(context, extent, name, &arguments);
    match extent {
        Extent::Everything => {
            step.command.env(STRESS_SECONDS, LONG_STRESS_SECONDS);
            step.command.args(["--", "--include-ignored"]);
        }
        // The tests that the filter selects run even if the set of CI ignores them.
        Extent::Ci { filter: Some(_) } => {
            step.command.args(["--", "--include-ignored"]);
        }
        Extent::Ci { filter: None } => {}
    }
    step
}

/// Returns a run of the set of CI in the chroot of another suite.
fn in_suite(context: &Context, suite: Suite) -> Result<Step> {
    let xtask = std::env::current_exe().context("cannot find this program")?;
    let mut command: Command = context.sh.cmd(xtask).into();
    command.args(["--suite", &suite.to_string(), "test"]);
    Ok(Step {
        name: format!("Debian {suite}"),
        command,
    })
}

/// Runs all steps, also after a failure. The duration of a step is printed only before the next
/// step, because the output must end with the summary of the last step.
fn run(steps: Vec<Step>) -> Result<()> {
    let mut failures = Vec::new();
    let mut earlier = String::new();
    for Step { name, command } in steps {
        eprintln!("{earlier}{name}");
        let began = Instant::now();
        if let Err(error) = step::show(command) {
            failures.push(format!("{name}: {error:#}"));
        }
        earlier = format!("{name}: {} s\n", began.elapsed().as_secs());
    }
    ensure!(
        failures.is_empty(),
        "these tests failed:\n{}",
        failures.join("\n")
    );
    Ok(())
}

/// Returns the test binaries of idem-tests without special requirements: files, and folders with a
/// `main.rs`, as cargo finds them.
fn other_binaries(context: &Context) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(context.root.join("tests/tests"))? {
        let path = entry?.path();
        let is_binary = path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the arguments and the variables of a step in one line.
    fn line(step: &Step) -> String {
        let variables = step
            .command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        let variables =
            variables.map(|(name, value)| format!("{}={}", name.display(), value.display()));
        let arguments = step
            .command
            .get_args()
            .map(|argument| argument.display().to_string());
        variables.chain(arguments).collect::<Vec<_>>().join(" ")
    }

    fn lines(extent: Extent) -> Vec<String> {
        let context = Context::new(Suite::Bookworm).unwrap();
        steps(&context, extent).unwrap().iter().map(line).collect()
    }

    #[test]
    fn everything_is_the_set_of_ci_and_more() {
        let ci = lines(Extent::Ci { filter: None });
        let everything = lines(Extent::Everything);
        let long = |line: &&String| {
            line.contains("IDEM_TEST_STRESS_SECONDS=120") && line.ends_with("-- --include-ignored")
        };
        let proxied = |line: &&String| line.contains("IDEM_TEST_PGBOUNCER=1");
        assert_eq!(ci.len() + 1, everything.len(), "{everything:#?}");
        assert_eq!(
            ci.iter().filter(long).count() + ci.iter().filter(proxied).count(),
            0,
            "{ci:#?}"
        );
        // All binaries of idem-tests: live servers, races, server.
        assert_eq!(everything.iter().filter(long).count(), 3, "{everything:#?}");
        assert_eq!(
            everything.iter().filter(proxied).count(),
            1,
            "{everything:#?}"
        );
    }

    #[test]
    fn filter_reaches_every_step_and_the_server_is_last() {
        let filtered = lines(Extent::Ci {
            filter: Some("i1_"),
        });
        assert!(
            filtered.iter().all(|line| line.contains(" i1_")),
            "{filtered:#?}"
        );
        assert!(
            filtered
                .last()
                .unwrap()
                .ends_with("--test server i1_ -- --include-ignored"),
            "{filtered:#?}"
        );
    }

    #[test]
    fn failed_step_does_not_stop_the_next_and_is_named() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let made = directory.path().join("made");
        let step = |name: &str, program: &str| Step {
            name: name.to_owned(),
            command: Command::new(program),
        };
        let mut second = step("second", "touch");
        second.command.arg(&made);
        let error = run(vec![step("first", "false"), second])
            .unwrap_err()
            .to_string();
        assert!(made.exists(), "{error}");
        assert!(
            error.starts_with("these tests failed:\nfirst: `false `"),
            "{error}"
        );
    }
}
