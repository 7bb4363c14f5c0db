//! `cargo xtask soak`: runs the same tests repeatedly until a given number of runs in a row have
//! passed.
//!
//! A run is every test with one of the given texts in its name, with the parallelism of an ordinary
//! run and without retries. Each run adds a line to `target/soak/ledger.jsonl` and keeps its output
//! beside it. A soak that was interrupted continues where it stopped, as long as the commit is the
//! same. A run that fails sets the count back to zero.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use xshell::cmd;

use crate::build::{self, Variant};
use crate::context::Context;
use crate::setup;

/// The packages with the tests that can be soaked.
const PACKAGES: [&str; 20] = [
    "idem-bench",
    "idem-chaos",
    "idem-demo",
    "idem-drivers",
    "idem-spec",
    "idem-stories",
    "idem-stress",
    "idem-tests",
    "idem-client",
    "idem-http",
    "idem-integration-tests",
    "idem-kafka",
    "idem-nats",
    "idem-postgres",
    "idem-rabbitmq",
    "idem-runtime",
    "idem-sqlx",
    "idem-relay",
    "idem-cluster",
    "idem-brokers",
];

/// The test binary that runs on the build with pause points.
const RACES: &str = "races";

/// The variable from which tests read the seed of their random choices.
const SEED: &str = "IDEM_TEST_SEED";

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    commit: String,
    /// The texts that select tests by their name. All tests run when there is none.
    names: Vec<String>,
    /// The start, in seconds since 1970.
    started_s: u64,
    took_s: u64,
    seed: u64,
    tests: usize,
    passed: bool,
    log: PathBuf,
}

/// A test binary, and the tests in it that match.
struct Program {
    path: PathBuf,
    /// The directory in which cargo would run the test binary.
    directory: PathBuf,
    races: bool,
    tests: Vec<String>,
}

/// Runs the tests with one of `names` in their name until `runs` runs in a row have passed.
pub fn soak(context: &Context, mut names: Vec<String>, runs: u32) -> Result<()> {
    // Sort the names, so that runs with the same names in another order count as runs of the same
    // tests.
    names.sort();
    names.dedup();
    let names = names.as_slice();
    setup::setup(context)?;
    build::build(context)?;
    build::build_variant(context, Variant::PausePoints)?;
    let programs = programs(context, names)?;
    let tests = count(&programs);
    ensure!(tests > 0, "there are no tests");
    for name in names {
        let is_used = programs
            .iter()
            .flat_map(|program| &program.tests)
            .any(|test| test.contains(name));
        ensure!(is_used, "no test has \"{name}\" in its name");
    }

    let directory = context.target().join("soak");
    fs::create_dir_all(&directory)?;
    let commit = commit(context)?;
    let ledger = directory.join("ledger.jsonl");
    let mut earlier = read(&ledger)?;
    let mut failures = 0;
    while streak(&earlier, &commit, names) < runs {
        let run = run(context, &programs, &directory, &commit, names)?;
        append(&ledger, &run)?;
        failures += u32::from(!run.passed);
        println!(
            "{} {} of {runs}: {tests} tests, seed {}, {} s, log {}",
            if run.passed { "passed" } else { "FAILED" },
            streak(&earlier, &commit, names) + u32::from(run.passed),
            run.seed,
            run.took_s,
            run.log.display()
        );
        earlier.push(run);
    }
    println!("{runs} runs of {names:?} in a row have passed at {commit}");
    println!("{failures} runs of this command failed before");
    Ok(())
}

/// Returns the number of tests of a run.
fn count(programs: &[Program]) -> usize {
    programs.iter().map(|program| program.tests.len()).sum()
}

/// Returns how many of the newest runs of these tests at this commit have passed in a row.
fn streak(ledger: &[Run], commit: &str, names: &[String]) -> u32 {
    let passed = ledger
        .iter()
        .rev()
        .filter(|run| run.commit == commit && run.names == names)
        .take_while(|run| run.passed)
        .count();
    u32::try_from(passed).unwrap_or(u32::MAX)
}

fn run(
    context: &Context,
    programs: &[Program],
    directory: &Path,
    commit: &str,
    names: &[String],
) -> Result<Run> {
    let started_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // The seed is different in each run, and it is printed, so that a failure can be repeated.
    let seed = started_s;
    let file_name = format!(
        "{commit}-{}-{started_s}.log",
        names.join("-").replace(['/', ':'], "-")
    );
    let log = directory.join(file_name);
    let mut output = File::create(&log)?;
    let began = Instant::now();
    let mut passed = true;
    for program in programs {
        writeln!(output, "{}", program.path.display())?;
        let variant = if program.races {
            Variant::PausePoints
        } else {
            Variant::Shipped
        };
        let status = Command::new(&program.path)
            .args(names)
            .arg("--include-ignored")
            .current_dir(&program.directory)
            .env("IDEM_PG_INSTALL", context.install_root(variant))
            .env("IDEM_PG_VERSION", context.pg.to_string())
            .env(SEED, seed.to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .status()
            .with_context(|| format!("cannot run {}", program.path.display()))?;
        passed &= status.success();
    }
    Ok(Run {
        commit: commit.to_owned(),
        names: names.to_vec(),
        started_s,
        took_s: began.elapsed().as_secs(),
        seed,
        tests: count(programs),
        passed,
        log,
    })
}

/// Returns the commit. When there are uncommitted changes, the result also contains a hash of these
/// changes, so that a run counts only for the changes with which it was made.
fn commit(context: &Context) -> Result<String> {
    let sh = &context.sh;
    let head = cmd!(sh, "git rev-parse --short=12 HEAD").quiet().read()?;
    let changes = cmd!(sh, "git diff HEAD").quiet().read()?;
    if changes.is_empty() {
        return Ok(head);
    }
    let hash = cmd!(sh, "git hash-object --stdin")
        .stdin(changes)
        .quiet()
        .read()?;
    Ok(format!("{head}-{}", &hash[..12.min(hash.len())]))
}

/// Builds the tests and returns the programs with tests that match.
fn programs(context: &Context, names: &[String]) -> Result<Vec<Program>> {
    let mut build = context.cargo(["test", "--no-run", "--message-format=json"]);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    build.arg("--all-features");
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the build of the tests failed");
    }
    let mut programs = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let (Some(path), Some(manifest)) = (
            message["executable"].as_str(),
            message["manifest_path"].as_str(),
        ) else {
            continue;
        };
        if message["profile"]["test"].as_bool() != Some(true) {
            continue;
        }
        let listed = Command::new(path)
            .args(["--list", "--format", "terse"])
            .args(names)
            .output()?;
        ensure!(listed.status.success(), "{path} cannot list its tests");
        let tests = String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter_map(|line| Some(line.strip_suffix(": test")?.to_owned()))
            .collect::<Vec<_>>();
        if !tests.is_empty() {
            programs.push(Program {
                path: path.into(),
                directory: Path::new(manifest)
                    .parent()
                    .map(Path::to_path_buf)
                    .unwrap_or_default(),
                races: message["target"]["name"].as_str() == Some(RACES),
                tests,
            });
        }
    }
    Ok(programs)
}

fn read(ledger: &Path) -> Result<Vec<Run>> {
    if !ledger.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(ledger)?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("{}: {line}", ledger.display()))
        })
        .collect()
}

fn append(ledger: &Path, run: &Run) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(ledger)?;
    writeln!(file, "{}", serde_json::to_string(run)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commit: &str, name: &str, passed: bool) -> Run {
        Run {
            commit: commit.to_owned(),
            names: vec![name.to_owned()],
            started_s: 0,
            took_s: 0,
            seed: 0,
            tests: 1,
            passed,
            log: PathBuf::new(),
        }
    }

    #[test]
    fn failed_run_starts_the_count_anew() {
        let ledger = [
            run("a", "x", true),
            run("a", "x", false),
            run("a", "x", true),
        ];
        assert_eq!(streak(&ledger, "a", &["x".to_owned()]), 1);
    }

    #[test]
    fn runs_of_other_commits_and_names_do_not_count() {
        let ledger = [
            run("a", "x", true),
            run("b", "x", true),
            run("a", "y", false),
        ];
        assert_eq!(streak(&ledger, "a", &["x".to_owned()]), 1);
        assert_eq!(streak(&ledger, "b", &["x".to_owned()]), 1);
        assert_eq!(streak(&ledger, "a", &["y".to_owned()]), 0);
        assert_eq!(streak(&ledger, "c", &["x".to_owned()]), 0);
    }

    #[test]
    fn ledger_is_read_as_it_was_written() -> Result<()> {
        let directory = xshell::Shell::new()?.create_temp_dir()?;
        let ledger = directory.path().join("ledger.jsonl");
        let runs = [run("a", "x", true), run("a", "x", false)];
        for run in &runs {
            append(&ledger, run)?;
        }
        assert_eq!(read(&ledger)?, runs);
        Ok(())
    }
}
