//! Short campaigns of fault injection. The ledger of a campaign without a planted bug shows no
//! error. The ledger of a campaign with a planted bug shows the errors of that bug. Long campaigns
//! run with `cargo xtask chaos`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use idem_chaos::checker::Violation;
use idem_cluster::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::Mutex;

/// A lock that the running campaign holds. Campaigns run one after the other, because each campaign
/// starts three servers and a dozen processes.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Runs a campaign. Returns its output, and its standard output as text. A campaign mounts disks,
/// so it fails with an error when it does not run as root.
async fn campaign(arguments: &[&str]) -> Result<(Output, String)> {
    let _alone = ALONE.lock().await;
    // This variable makes cargo build the worker program, which `chaos` looks for in its own
    // directory.
    ensure!(!env!("CARGO_BIN_EXE_chaos-worker").is_empty());
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok((output, text))
}

/// Asserts that a campaign with this planted bug fails, and that its ledger reports at least one of
/// these errors.
async fn assert_reported(flaw: &str, minutes: &str, errors: &[Violation]) -> Result<()> {
    let (output, ledger) = campaign(&["--break", flaw, "--minutes", minutes]).await?;
    assert_eq!(output.status.code(), Some(1), "{ledger}");
    assert!(
        errors.iter().any(|error| reports(&ledger, *error)),
        "{ledger}"
    );
    Ok(())
}

/// Returns true if the ledger counts this error.
fn reports(ledger: &str, error: Violation) -> bool {
    let count = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        (cells.next() == Some(error.name())).then(|| cells.next()?.parse::<u64>().ok())?
    };
    ledger.lines().filter_map(count).any(|count| count > 0)
}

#[test]
fn unchecked_row_is_not_reported() {
    let mut ledger = idem_chaos::Ledger::default();
    assert!(!reports(&ledger.to_string(), Violation::Lost));
    ledger.errors.insert(Violation::Lost, 0);
    assert!(!reports(&ledger.to_string(), Violation::Lost));
    ledger.errors.insert(Violation::Lost, 2);
    assert!(reports(&ledger.to_string(), Violation::Lost));
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn campaign_over_rabbitmq_is_green() -> Result<()> {
    let (output, ledger) = campaign(&["--broker", "rabbitmq", "--minutes", "1"]).await?;
    assert!(
        output.status.success() && ledger.contains("The campaign is GREEN"),
        "{ledger}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn campaign_over_nats_is_green() -> Result<()> {
    let (output, ledger) = campaign(&["--broker", "nats", "--minutes", "1"]).await?;
    assert!(
        output.status.success() && ledger.contains("The campaign is GREEN"),
        "{ledger}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn acknowledging_before_the_commit_is_reported() -> Result<()> {
    assert_reported(
        "ack-before-commit",
        "1",
        &[Violation::Lost, Violation::MoveNotOnce],
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn reject_without_dead_letter_is_reported() -> Result<()> {
    assert_reported("reject-drops", "1", &[Violation::PoisonNotOnce]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn rotation_without_a_fence_is_reported() -> Result<()> {
    assert_reported("skipped-fence", "2", &[Violation::ClaimedTwice]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn completion_without_the_token_is_reported() -> Result<()> {
    assert_reported("ignored-token", "1", &[Violation::LostToken]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn observer_that_hangs_after_a_fault_is_reported() -> Result<()> {
    assert_reported("stuck-observer", "1", &[Violation::NotRecovered]).await
}

/// Returns the command lines of the running processes that contain this directory: the servers and
/// the other processes of a campaign.
fn processes_of(dir: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process may end before its command line is read.
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(dir) {
            found.push(line);
        }
    }
    Ok(found)
}

/// On SIGTERM and on SIGINT a campaign ends all processes that it has started and removes its
/// directory.
#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn signal_ends_a_campaign_and_all_its_processes() -> Result<()> {
    let _alone = ALONE.lock().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_chaos"))
            .args(["--minutes", "1"])
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = BufReader::new(child.stderr.take().context("no standard error")?);
        let mut lines = stderr.lines();
        let begins = "the campaign runs in ";
        let dir = loop {
            let line = lines.next().context("the campaign names no directory")??;
            if let Some(dir) = line.strip_prefix(begins) {
                break dir.to_owned();
            }
        };
        // The campaign starts `chaos-worker` processes after the servers, so the servers are
        // running, too.
        wait_for(
            "the processes are running",
            Duration::from_secs(180),
            || {
                Ok(processes_of(&dir)?
                    .iter()
                    .any(|line| line.contains("chaos-worker steps")))
            },
        )?;
        ensure!(
            processes_of(&dir)?
                .iter()
                .any(|line| line.contains("postgres"))
        );
        kill(Pid::from_raw(child.id().cast_signed()), signal)?;
        let rest: Vec<String> = lines.collect::<std::io::Result<_>>()?;
        assert_eq!(child.wait()?.code(), Some(1), "{signal}: {rest:?}");
        assert_eq!(processes_of(&dir)?, [""; 0], "{signal}: {rest:?}");
        assert!(!Path::new(&dir).exists(), "{signal}: {rest:?}");
    }
    Ok(())
}
