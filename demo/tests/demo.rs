//! Runs the program of the demo as a person or a script would, on a terminal and without one.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use idem_testkit::Database;

const PROGRAM: &str = env!("CARGO_BIN_EXE_shooting-range");

/// The escape character, which begins every control sequence of a terminal.
const ESCAPE: char = '\u{1b}';

/// The control sequence that begins the colour of a bar.
const CYAN: &str = "\u{1b}[36m";

/// The output of a run.
struct Output {
    stdout: String,
    stderr: String,
}

/// Returns the arguments of a short run.
fn arguments(db: &Database) -> Vec<String> {
    let url = db.cluster().connection_string(db.name());
    let rest =
        "--shots 300 --cost-rounds 2 --cost-round-ms 100 --cost-clients 2 --cost-retained 1000";
    ["--database-url".to_owned(), url]
        .into_iter()
        .chain(rest.split(' ').map(str::to_owned))
        .collect()
}

/// Runs a command to its end without blocking the runtime. Fails when the command fails.
async fn complete(mut command: Command) -> Result<Output> {
    let output = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
    let output = output.await??;
    let result = Output {
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    };
    ensure!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        result.stdout,
        result.stderr
    );
    Ok(result)
}

/// Runs the demo on a pseudo-terminal and returns everything that it wrote to the terminal.
async fn on_terminal(db: &Database, no_color: bool) -> Result<String> {
    let quoted = |argument: &String| format!("'{}'", argument.replace('\'', r"'\''"));
    let line: Vec<_> = std::iter::once(PROGRAM.to_owned())
        .chain(arguments(db).iter().map(quoted))
        .collect();
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &line.join(" ")])
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR")
        .env_remove("CLICOLOR_FORCE");
    if no_color {
        script.env("NO_COLOR", "1");
    }
    let output = complete(script).await;
    Ok(output
        .context("`script` of the Debian package bsdutils")?
        .stdout)
}

/// Without a terminal, the reports are on the standard output and the progress is on the standard
/// error, in plain lines. The reports have both parts, no rate beside the errors, and the summary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_without_a_terminal_prints_plain_lines() -> Result<()> {
    let db = Database::with_idem("demo").await?;
    let mut program = Command::new(PROGRAM);
    program.args(arguments(&db));
    let Output { stdout, stderr } = complete(program).await?;
    for text in [&stdout, &stderr] {
        assert!(!text.contains(ESCAPE), "{text}");
        assert!(!text.contains('\r'), "{text}");
    }
    assert!(stderr.contains("errors, idem"), "{stderr}");
    assert!(stderr.contains("cost, round 1 of 2: "), "{stderr}");
    let (errors, rest) = stdout
        .split_once("2 of 2: cost")
        .with_context(|| format!("there is no second part:\n{stdout}"))?;
    assert!(errors.contains("messages that took effect twice"));
    assert!(errors.lines().all(|line| line.len() <= 80), "{errors}");
    let last = errors.lines().rfind(|line| !line.is_empty());
    let words: Vec<_> = last.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words, ["all", "results", "are", "wrong", "wrong", "right"]);
    assert!(!errors.contains("second"), "a rate:\n{errors}");
    let (cost, summary) = rest
        .split_once("What this run showed")
        .with_context(|| format!("there is no summary:\n{stdout}"))?;
    assert!(cost.contains("messages/s") && cost.contains("baseline"));
    assert!(cost.contains("2 of 100 ms"), "{cost}");
    assert!(summary.contains("idem          no error\n"), "{summary}");
    assert!(summary.contains("docs/consumers.md"), "{summary}");
    Ok(())
}

/// On a terminal, the table is redrawn in place with coloured bars. With `NO_COLOR` it has no
/// colours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_on_a_terminal_redraws_a_table() -> Result<()> {
    let db = Database::with_idem("demo").await?;
    let coloured = on_terminal(&db, false).await?;
    assert!(coloured.contains(CYAN), "{coloured}");
    let plain = on_terminal(&db, true).await?;
    assert!(!plain.contains(CYAN), "{plain}");
    for screen in [coloured, plain] {
        assert!(screen.contains("deliveries  repeated  killed  hit+miss"));
        assert!(screen.contains(&"=".repeat(20)), "no full bar:\n{screen}");
        assert!(screen.contains("round 2 of 2: "), "{screen}");
        // Without a terminal, the progress is printed as lines. On a terminal it is not.
        assert!(!screen.contains("cost, round"), "{screen}");
        assert!(screen.contains("What to read next"), "{screen}");
    }
    Ok(())
}
