//! Runs the tests: the set of CI, a part of it, or everything.
//!
//! - `cargo xtask test` runs the set of CI.
//! - `cargo xtask test quick` runs the unit tests, the isolation tests, and one test for each
//!   invariant.
//! - `cargo xtask test everything` runs the stress tests for longer, the tests that the set of CI
//!   ignores, the client through PgBouncer, and the other Debian suites.
//! - `cargo xtask test <name>` runs the tests of a test binary or of a package, with the tests that
//!   the set of CI ignores and without the examples in the documentation. If no test binary and no
//!   package has this name, it runs all tests with this text in their name.

mod failures;
mod programs;
mod quick;

use std::num::NonZero;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, Variant};
use crate::context::Context;
use crate::suite::Suite;
use crate::{chroot, debian, setup, step};
use failures::Failures;
use programs::{PACKAGES, Program, Target};

/// The variable that makes the tests of the client connect through PgBouncer in transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

/// The variable with the duration of the stress tests. Without it they run for 15 seconds.
const STRESS_SECONDS: &str = "IDEM_TEST_STRESS_SECONDS";
const LONG_STRESS_SECONDS: &str = "120";

/// The variable from which tests read the seed of their random choices.
const SEED: &str = "IDEM_TEST_SEED";

/// The variable with the number of tests that run at the same time in one program.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The number of tests that run at the same time, per core. Most tests wait for servers and use
/// little of a core.
const TESTS_PER_CORE: usize = 3;

/// The largest number of tests that run at the same time, because tests of one program share the
/// connections of one server.
const MAX_TESTS: usize = 8;

/// The test binary with the deterministic tests of races. It needs the build with pause points.
const RACES: &str = "races";

/// The test binary with the drivers of all languages. The set of CI ignores most of its tests.
const DRIVERS: &str = "drivers";

/// The largest test binary. It runs last, so that its summary ends the output.
const SERVER: &str = "server";

/// The packages whose tests also pass through PgBouncer.
const CLIENTS: [&str; 9] = [
    "idem-client",
    "idem-http",
    "idem-integration-tests",
    "idem-kafka",
    "idem-nats",
    "idem-postgres",
    "idem-rabbitmq",
    "idem-runtime",
    "idem-sqlx",
];

/// The arguments that select a set of tests. Any other argument is a name.
const EVERYTHING: &str = "everything";
const QUICK: &str = "quick";

/// The tests that run.
#[derive(Clone, Copy, Debug)]
enum Extent<'n> {
    /// The set of CI.
    Ci,
    Quick,
    Everything,
    /// All tests of the test binary with this name.
    Binary(&'n str),
    /// All tests of the package with this name.
    Package(&'n str),
    /// All tests with this text in their name.
    Matching(&'n str),
}

impl<'n> Extent<'n> {
    fn of(name: Option<&'n str>, targets: &[Target]) -> Self {
        match name {
            None => Self::Ci,
            Some(QUICK) => Self::Quick,
            Some(EVERYTHING) => Self::Everything,
            Some(name) if targets.iter().any(|target| is_binary(target, name)) => {
                Self::Binary(name)
            }
            Some(name) if targets.iter().any(|target| is_of_package(target, name)) => {
                Self::Package(name)
            }
            Some(text) => Self::Matching(text),
        }
    }

    /// Returns whether the target has tests of this set.
    fn has(self, target: &Target) -> bool {
        match self {
            Self::Ci | Self::Everything | Self::Matching(_) => true,
            Self::Quick => !target.is_binary || quick::BINARIES.contains(&target.name.as_str()),
            Self::Binary(name) => is_binary(target, name),
            Self::Package(name) => is_of_package(target, name),
        }
    }

    /// Returns the arguments for the program of a target.
    fn arguments(self, target: &Target) -> Vec<&'n str> {
        match self {
            Self::Ci => vec![],
            Self::Quick if target.is_binary => quick::INVARIANTS.to_vec(),
            Self::Quick => vec![],
            Self::Everything | Self::Binary(_) | Self::Package(_) => vec!["--include-ignored"],
            Self::Matching(text) => vec![text, "--include-ignored"],
        }
    }

    /// Returns whether the drivers of all languages are needed. The set of CI executes a part of
    /// them.
    fn needs_languages(self) -> bool {
        matches!(self, Self::Everything | Self::Binary(DRIVERS))
    }
}

fn is_binary(target: &Target, name: &str) -> bool {
    target.is_binary && target.name == name
}

/// Returns whether this is the name of the package, with or without `idem-`.
fn is_of_package(target: &Target, name: &str) -> bool {
    let package = target.package.as_str();
    package == name || package.strip_prefix("idem-") == Some(name)
}

/// A test program with its arguments.
struct Run {
    title: String,
    command: Command,
}

/// Runs a set of tests `repeat` times, each time with another seed, until a run fails.
pub fn test(context: &Context, name: Option<&str>, repeat: u64) -> Result<()> {
    let mut targets = programs::targets(context)?;
    let extent = Extent::of(name, &targets);
    targets.retain(|target| extent.has(target));
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
    if targets.iter().any(|target| is_binary(target, RACES)) {
        build::build_variant(context, Variant::PausePoints)?;
    }
    let programs = programs::build(context, &targets)?;
    if let Extent::Ci = extent {
        eprintln!(
            "`cargo xtask test {EVERYTHING}` also runs: stress tests of {LONG_STRESS_SECONDS} s \
             each, the tests shown as \"ignored\", the client's tests through PgBouncer, the \
             other Debian suites. \
             `cargo xtask test {QUICK}` runs a few minutes."
        );
    }
    // A single run has the default seed. Repeated runs have other seeds in each call.
    let first_seed = match repeat {
        1 => None,
        _ => Some(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()),
    };
    for number in 0..repeat {
        let seed = first_seed.map(|first| first + number);
        test_once(context, extent, &programs, &others, seed)?;
    }
    Ok(())
}

/// Runs a set of tests, if given with this seed.
fn test_once(
    context: &Context,
    extent: Extent,
    programs: &[Program],
    others: &[Suite],
    seed: Option<u64>,
) -> Result<()> {
    let mut selected = Vec::new();
    if let Extent::Ci | Extent::Everything = extent {
        selected.push(doc_tests(context));
    }
    if let Extent::Everything = extent {
        selected.extend(through_pgbouncer(context, programs));
    }
    selected.extend(runs(context, extent, programs));
    if let Some(seed) = seed {
        eprintln!("{SEED}={seed}");
        for Run { command, .. } in &mut selected {
            command.env(SEED, seed.to_string());
        }
    }
    let (tests, mut failures) = run(selected);
    ensure!(tests > 0, "no test has this name");
    for suite in others {
        let ended = step::show(in_suite(context, *suite)?);
        failures.extend(
            ended
                .err()
                .map(|error| format!("Debian {suite}: {error:#}")),
        );
    }
    ensure!(
        failures.is_empty(),
        "these tests failed:\n{}",
        failures.join("\n")
    );
    Ok(())
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

/// Runs all programs, also after a failure. The duration of a program is printed only before the
/// next one, because the output must end with the summary of the last program. Returns the number
/// of tests, and a text for each program that failed.
fn run(runs: Vec<Run>) -> (usize, Vec<String>) {
    let (mut tests, mut failures) = (0, Vec::new());
    let mut earlier = String::new();
    for Run { title, command } in runs {
        println!("{earlier}{title}");
        let began = Instant::now();
        let mut failed_tests = Failures::default();
        let ended = step::read_lines(command, |line| {
            tests += number_of_tests(line);
            failed_tests.read(line);
            println!("{line}");
        });
        if let Err(error) = ended {
            failures.push(format!("{title}: {error:#}{}", failed_tests.report()));
        }
        earlier = format!("{title}: {} s\n", began.elapsed().as_secs());
    }
    (tests, failures)
}

/// Returns the number in the line with which a program begins its tests: `running 7 tests`.
fn number_of_tests(line: &str) -> usize {
    let number = line.strip_prefix("running ").and_then(|rest| {
        let (number, tests) = rest.split_once(' ')?;
        tests.starts_with("test").then(|| number.parse().ok())?
    });
    number.unwrap_or(0)
}

/// Returns the runs of the programs. The largest one is the last.
fn runs(context: &Context, extent: Extent, programs: &[Program]) -> Vec<Run> {
    let (last, rest): (Vec<_>, Vec<_>) = programs
        .iter()
        .partition(|program| program.target.name == SERVER);
    let programs = rest.into_iter().chain(last);
    let run_of = |program: &Program| {
        let mut run = run_of(context, program);
        if let Extent::Everything = extent {
            run.command.env(STRESS_SECONDS, LONG_STRESS_SECONDS);
        }
        run.command.args(extent.arguments(&program.target));
        run
    };
    programs.map(run_of).collect()
}

/// Returns the run of a program as in the set of CI: without ignored tests.
fn run_of(context: &Context, program: &Program) -> Run {
    let Target { package, name, .. } = &program.target;
    let mut command = program.command();
    context.name_server(&mut command);
    if is_binary(&program.target, RACES) {
        let install = context.install_root(Variant::PausePoints);
        command.env("IDEM_PG_INSTALL", install);
    }
    if std::env::var_os(TEST_THREADS).is_none() {
        command.env(TEST_THREADS, test_threads().to_string());
    }
    Run {
        title: format!("{package}: {name}"),
        command,
    }
}

fn through_pgbouncer(context: &Context, programs: &[Program]) -> Vec<Run> {
    let clients = programs.iter().filter(|program| {
        program.target.is_binary && CLIENTS.contains(&program.target.package.as_str())
    });
    let through_pgbouncer = |program| {
        let mut run = run_of(context, program);
        run.title += " through PgBouncer";
        run.command.env(THROUGH_PGBOUNCER, "1");
        run
    };
    clients.map(through_pgbouncer).collect()
}

fn doc_tests(context: &Context) -> Run {
    let mut command = context.cargo(["test", "--doc", "--quiet", "--no-fail-fast"]);
    command.args(PACKAGES);
    Run {
        title: "examples in the documentation".to_owned(),
        command,
    }
}

/// Returns a run of the set of CI in the chroot of another suite.
fn in_suite(context: &Context, suite: Suite) -> Result<Command> {
    let xtask = std::env::current_exe().context("cannot find this program")?;
    let mut command: Command = context.sh.cmd(xtask).into();
    command.args(["--suite", &suite.to_string(), "test"]);
    Ok(command)
}

fn test_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    MAX_TESTS.min(TESTS_PER_CORE * cores)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn targets() -> Vec<Target> {
        programs::targets(&Context::new(Suite::Bookworm).unwrap()).unwrap()
    }

    /// Returns the names of the targets that a set of tests has.
    fn names(targets: &[Target], name: Option<&str>) -> Vec<String> {
        let extent = Extent::of(name, targets);
        let chosen = targets.iter().filter(|target| extent.has(target));
        chosen.map(|target| target.name.clone()).collect()
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

    #[test]
    fn set_of_ci_has_every_target() {
        let targets = targets();
        assert_eq!(names(&targets, None).len(), targets.len());
        for name in [RACES, DRIVERS, SERVER] {
            assert!(names(&targets, None).iter().any(|found| found == name));
        }
        let packages = CLIENTS.iter();
        let is_there = |name: &&str| targets.iter().any(|target| target.package == **name);
        assert_eq!(
            packages.filter(|name| is_there(name)).count(),
            CLIENTS.len()
        );
    }

    #[test]
    fn name_selects_a_package_or_a_test_binary() {
        let targets = targets();
        assert_eq!(names(&targets, Some("server")), ["server"]);
        // A package has this name too.
        assert_eq!(names(&targets, Some("drivers")), ["drivers"]);
        assert_eq!(
            names(&targets, Some("compile-fail")),
            ["compile_fail", "idem_compile_fail"]
        );
        assert_eq!(names(&targets, Some("i1_")).len(), targets.len());
    }

    #[test]
    fn ignored_tests_run_except_in_the_sets_of_ci_and_quick() {
        let targets = targets();
        let arguments = |name: Option<&str>| {
            let server = targets.iter().find(|target| target.name == SERVER).unwrap();
            Extent::of(name, &targets).arguments(server).join(" ")
        };
        assert_eq!(arguments(None), "");
        assert_eq!(arguments(Some(QUICK)), quick::INVARIANTS.join(" "));
        assert_eq!(arguments(Some(EVERYTHING)), "--include-ignored");
        assert_eq!(arguments(Some(SERVER)), "--include-ignored");
        assert_eq!(arguments(Some("i1_")), "i1_ --include-ignored");
    }

    #[test]
    fn failed_program_does_not_stop_the_next_and_is_named() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let made = directory.path().join("made");
        let sh = |title: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Run {
                title: title.to_owned(),
                command,
            }
        };
        let fails = "printf 'running 1 test\nfailures:\n---- bad stdout ----\nwrong\nfailures:\n    bad\n'; exit 1";
        let touch = format!("touch {}", made.display());
        let (tests, failures) = run(vec![sh("first", fails), sh("second", &touch)]);
        assert_eq!(tests, 1);
        assert!(made.exists(), "{failures:?}");
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("first: `sh "), "{failures:?}");
        assert!(failures[0].ends_with("\n  bad\n    wrong"), "{failures:?}");
    }

    /// The quick tests contain a test for each invariant, and each test exists in a binary that
    /// runs.
    #[test]
    fn quick_tests_cover_every_invariant() {
        let root = Context::new(Suite::Bookworm).unwrap().root;
        let folders = quick::BINARIES.map(|name| root.join("tests").join(name));
        let sources: String = folders.iter().map(|folder| sources(folder)).collect();
        for test in quick::INVARIANTS {
            let is_there = sources.contains(&format!("fn {test}("));
            assert!(is_there, "{test} does not exist");
        }
        for invariant in 1..=12 {
            let prefix = format!("i{invariant}_");
            let mut tests = quick::INVARIANTS.iter();
            assert!(
                tests.any(|test| test.starts_with(&prefix)),
                "no test for I{invariant}"
            );
        }
    }
}
