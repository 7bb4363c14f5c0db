//! Runs the tests: the set of CI, a part of it, or everything.
//!
//! - `cargo xtask test` runs the set of CI.
//! - `cargo xtask test quick` runs the unit tests, the isolation tests, and one test for each
//!   invariant.
//! - `cargo xtask test everything` runs the stress tests for longer, the tests that the set of CI
//!   ignores, the client through PgBouncer, and the other Debian suites.
//! - `cargo xtask test <part>` runs one of the [parts], with the tests that the set of CI ignores.
//! - `cargo xtask test <text>` runs the tests with this text in their name, ignored ones too.

mod failures;
mod parts;
mod quick;

use std::num::NonZero;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, Variant};
use crate::context::Context;
use crate::suite::Suite;
use crate::{chroot, debian, setup, step};
use failures::Failures;
use parts::{CI, CLIENT_TESTS, CLIENTS, DRIVERS, Features, LIVE, Part, RACES, Targets};

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

/// The arguments that select a set of tests. Any other argument is the name of a part, or a text
/// that is searched in the names of the tests.
const EVERYTHING: &str = "everything";
const QUICK: &str = "quick";

/// The tests that run.
#[derive(Clone, Copy, Debug)]
enum Extent<'f> {
    /// The set of CI.
    Ci,
    Quick,
    Everything,
    Part(Part),
    /// The tests of the set of CI with this text in their name.
    Named(&'f str),
}

impl<'f> Extent<'f> {
    fn of(words: Option<&'f str>) -> Self {
        match words {
            None => Self::Ci,
            Some(QUICK) => Self::Quick,
            Some(EVERYTHING) => Self::Everything,
            Some(words) => parts::named(words).map_or(Self::Named(words), Self::Part),
        }
    }

    /// Returns whether ignored tests run. They run unless the set is that of CI or the quick set.
    fn includes_ignored(self) -> bool {
        matches!(self, Self::Everything | Self::Part(_) | Self::Named(_))
    }

    /// Returns whether the drivers of all languages are needed. The set of CI executes a part of
    /// them.
    fn needs_languages(self) -> bool {
        matches!(self, Self::Everything | Self::Part(DRIVERS))
    }
}

/// One run of cargo.
struct Step {
    name: String,
    command: Command,
    /// The run needs the build of the extension with pause points.
    needs_pause_points: bool,
}

pub fn test(context: &Context, words: Option<&str>) -> Result<()> {
    let extent = Extent::of(words);
    let others = match extent {
        Extent::Everything => other_suites(context.suite)?,
        _ => Vec::new(),
    };
    if extent.needs_languages() {
        let _alone = context.alone()?;
        debian::install(context, &debian::languages())?;
    }
    setup::setup(context)?;
    build::build(context)?;
    let steps_of_suite = steps(context, extent);
    if steps_of_suite.iter().any(|step| step.needs_pause_points) {
        build::build_variant(context, Variant::PausePoints)?;
    }
    if let Extent::Ci = extent {
        eprintln!(
            "`cargo xtask test {EVERYTHING}` also runs: stress tests of {LONG_STRESS_SECONDS} s \
             each, the tests shown as \"ignored\", the client's tests through PgBouncer, the \
             other Debian suites. \
             `cargo xtask test {QUICK}` runs a few minutes. The parts are: {}",
            parts::names().join(", ")
        );
    }
    let others = others.into_iter().map(|suite| in_suite(context, suite));
    run(steps_of_suite
        .into_iter()
        .map(Ok)
        .chain(others)
        .collect::<Result<_>>()?)
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

/// Returns the runs of cargo. The run of the largest test binary is the last one.
fn steps(context: &Context, extent: Extent) -> Vec<Step> {
    match extent {
        Extent::Quick => quick_steps(context),
        Extent::Part(part) => vec![part_step(context, extent, &part)],
        Extent::Ci | Extent::Everything | Extent::Named(_) => {
            let steps = CI.iter().map(|part| part_step(context, extent, part));
            let mut steps: Vec<_> = steps.collect();
            if let Extent::Everything = extent {
                let clients = CI
                    .iter()
                    .position(|part| *part == CLIENTS)
                    .unwrap_or_default();
                steps.insert(clients + 1, through_pgbouncer(context));
            }
            steps
        }
    }
}

/// Returns the runs of the unit tests, and then of one test for each invariant.
fn quick_steps(context: &Context) -> Vec<Step> {
    let units = quick::UNIT_TESTS.iter();
    let mut steps: Vec<_> = units
        .map(|part| part_step(context, Extent::Quick, part))
        .collect();
    let part = Part {
        name: "one test for each invariant",
        packages: LIVE,
        features: Features::All,
        targets: Targets::Only(&quick::BINARIES),
        has_long_tests: false,
    };
    let mut invariants = cargo_test(context, &part);
    invariants.command.arg("--").args(quick::INVARIANTS);
    steps.push(invariants);
    steps
}

fn through_pgbouncer(context: &Context) -> Step {
    let part = Part {
        targets: Targets::Only(CLIENT_TESTS),
        ..CLIENTS
    };
    let mut step = cargo_test(context, &part);
    step.name = format!("{} through PgBouncer", step.name);
    step.command.env(THROUGH_PGBOUNCER, "1");
    step
}

/// Returns the run of a part.
fn part_step(context: &Context, extent: Extent, part: &Part) -> Step {
    let mut step = cargo_test(context, part);
    if let Extent::Named(text) = extent {
        step.command.arg(text);
    }
    if part.has_long_tests {
        if let Extent::Everything = extent {
            step.command.env(STRESS_SECONDS, LONG_STRESS_SECONDS);
        }
        if extent.includes_ignored() {
            step.command.args(["--", "--include-ignored"]);
        }
    }
    step
}

/// Returns the run of a part as in the set of CI: without ignored tests.
fn cargo_test(context: &Context, part: &Part) -> Step {
    let mut command = context.cargo(["test", "--no-fail-fast"]);
    for package in part.packages {
        command.args(["--package", package]);
    }
    match part.features {
        Features::Default => {}
        Features::All => {
            command.arg("--all-features");
        }
    }
    match part.targets {
        Targets::All => {}
        Targets::Units => {
            command.args(["--lib", "--bins"]);
        }
        Targets::Binaries(names) => {
            command.args(["--lib", "--bins"]);
            command.args(names.iter().flat_map(|name| ["--test", name]));
        }
        Targets::Only(names) => {
            command.args(names.iter().flat_map(|name| ["--test", name]));
        }
        Targets::DocTests => {
            command.arg("--doc");
        }
    }
    if std::env::var_os(TEST_THREADS).is_none() {
        command.env(TEST_THREADS, test_threads().to_string());
    }
    let needs_pause_points = part.targets == Targets::Only(&[RACES]);
    if needs_pause_points {
        let install = context.install_root(Variant::PausePoints);
        command.env("IDEM_PG_INSTALL", install);
    }
    Step {
        name: part.name.to_owned(),
        command,
        needs_pause_points,
    }
}

fn test_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    MAX_TESTS.min(TESTS_PER_CORE * cores)
}

/// Returns a run of the set of CI in the chroot of another suite.
fn in_suite(context: &Context, suite: Suite) -> Result<Step> {
    let xtask = std::env::current_exe().context("cannot find this program")?;
    let mut command: Command = context.sh.cmd(xtask).into();
    command.args(["--suite", &suite.to_string(), "test"]);
    Ok(Step {
        name: format!("Debian {suite}"),
        command,
        needs_pause_points: false,
    })
}

/// Runs all steps, also after a failure. The duration of a step is printed only before the next
/// step, because the output must end with the summary of the last step. The error names the failed
/// tests.
fn run(steps: Vec<Step>) -> Result<()> {
    let mut failed_steps = Vec::new();
    let mut earlier = String::new();
    for Step { name, command, .. } in steps {
        eprintln!("{earlier}{name}");
        let began = Instant::now();
        let mut failures = Failures::default();
        if let Err(error) = step::show_lines(command, |line| failures.read(line)) {
            failed_steps.push(format!("{name}: {error:#}{}", failures.report()));
        }
        earlier = format!("{name}: {} s\n", began.elapsed().as_secs());
    }
    ensure!(
        failed_steps.is_empty(),
        "these tests failed:\n{}",
        failed_steps.join("\n")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use parts::{MODEL, OTHERS, SERVER, UNITS};

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
        steps(&context, extent).iter().map(line).collect()
    }

    /// Returns the sources of the packages in a folder of the workspace, as one text.
    fn sources(folder: &Path) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                text += &sources(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(path).unwrap();
            }
        }
        text
    }

    /// Returns the packages of the workspace, each with its test binaries.
    fn packages() -> Vec<(String, Vec<String>)> {
        let context = Context::new(Suite::Bookworm).unwrap();
        let metadata = context
            .cargo(["metadata", "--no-deps", "--format-version=1"])
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let binaries = |package: &serde_json::Value| {
            let targets = package["targets"].as_array().unwrap().iter();
            targets
                .filter(|target| target["kind"][0] == "test")
                .map(|target| target["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let packages = metadata["packages"].as_array().unwrap().iter();
        packages
            .map(|package| {
                (
                    package["name"].as_str().unwrap().to_owned(),
                    binaries(package),
                )
            })
            .collect()
    }

    #[test]
    fn set_of_ci_runs_every_package_and_test_binary() {
        let run_whole = [UNITS.packages, MODEL.packages].concat();
        for (package, binaries) in packages() {
            // The extension is tested through a server.
            if package == "idem" || run_whole.contains(&package.as_str()) {
                continue;
            }
            assert!(LIVE.contains(&package.as_str()), "{package} is in no part");
            for name in binaries {
                assert!(
                    [&[RACES, SERVER], CLIENT_TESTS, OTHERS]
                        .concat()
                        .contains(&name.as_str()),
                    "the test binary {name} is in no part"
                );
            }
        }
    }

    /// A name in two lists would run twice, and a name that no binary has would end cargo.
    #[test]
    fn each_name_of_a_test_binary_is_used_once() {
        let named = [&[RACES, SERVER], CLIENT_TESTS, OTHERS].concat();
        let names: BTreeSet<_> = named.iter().map(|name| name.to_string()).collect();
        assert_eq!(names.len(), named.len(), "{named:?}");
        let live = packages()
            .into_iter()
            .filter(|(name, _)| LIVE.contains(&name.as_str()));
        let found: BTreeSet<_> = live.flat_map(|(_, binaries)| binaries).collect();
        assert_eq!(names, found);
    }

    /// The test `examples` builds with the packages and features of its part, because cargo
    /// compiles dependencies again for other features.
    #[test]
    fn examples_are_built_with_the_packages_of_their_part() {
        let root = Context::new(Suite::Bookworm).unwrap().root;
        let source = fs::read_to_string(root.join("tests/integrations/tests/examples.rs")).unwrap();
        let (_, list) = source.split_once("const PACKAGES: ").unwrap();
        let (list, _) = list.split_once("];\n").unwrap();
        let packages: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(packages, LIVE);
    }

    #[test]
    fn everything_is_the_set_of_ci_and_more() {
        let ci = lines(Extent::Ci);
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
        // The runs with tests on live servers: `OTHERS`, `RACES` and `SERVER`.
        assert_eq!(everything.iter().filter(long).count(), 3, "{everything:#?}");
        assert_eq!(
            everything.iter().filter(proxied).count(),
            1,
            "{everything:#?}"
        );
    }

    #[test]
    fn text_reaches_every_step_and_the_server_is_last() {
        let named = lines(Extent::of(Some("i1_")));
        assert!(named.iter().all(|line| line.contains(" i1_")), "{named:#?}");
        assert!(
            named
                .last()
                .unwrap()
                .ends_with("--test server i1_ -- --include-ignored"),
            "{named:#?}"
        );
    }

    #[test]
    fn part_runs_alone() {
        for name in parts::names() {
            assert_eq!(lines(Extent::of(Some(name))).len(), 1, "{name}");
        }
        let stress = lines(Extent::of(Some("stress")));
        assert!(
            stress[0].ends_with("--package idem-stress --all-features -- --include-ignored"),
            "{stress:?}"
        );
    }

    /// The quick tests contain a test for each invariant, and each test exists in a binary that
    /// runs.
    #[test]
    fn quick_tests_cover_every_invariant() {
        let root = Context::new(Suite::Bookworm).unwrap().root;
        let folders = quick::BINARIES.map(|name| root.join("tests").join(name));
        let sources: String = folders.iter().map(|folder| sources(folder)).collect();
        for test in quick::INVARIANTS {
            assert!(
                sources.contains(&format!("fn {test}(")),
                "{test} does not exist"
            );
        }
        for invariant in 1..=12 {
            let prefix = format!("i{invariant}_");
            assert!(
                quick::INVARIANTS
                    .iter()
                    .any(|test| test.starts_with(&prefix)),
                "no test for I{invariant}"
            );
        }
        let last = lines(Extent::Quick).pop().unwrap();
        assert!(last.contains("--test server -- i1_"), "{last}");
    }

    #[test]
    fn failed_step_does_not_stop_the_next_and_is_named() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let made = directory.path().join("made");
        let step = |name: &str, program: &str| Step {
            name: name.to_owned(),
            command: Command::new(program),
            needs_pause_points: false,
        };
        let mut first = step("first", "sh");
        first.command.args([
            "-c",
            "printf 'failures:\n---- bad stdout ----\nwrong\nfailures:\n    bad\n'; exit 1",
        ]);
        let mut second = step("second", "touch");
        second.command.arg(&made);
        let error = run(vec![first, second]).unwrap_err().to_string();
        assert!(made.exists(), "{error}");
        assert!(
            error.starts_with("these tests failed:\nfirst: `sh "),
            "{error}"
        );
        assert!(error.ends_with("\n  bad\n    wrong"), "{error}");
    }
}
