//! Short campaigns of fault injection: one without a planted bug is green, and every planted bug is
//! reported. Long ones run with `cargo xtask chaos`.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use idem_tests::chaos::checker::Violation;
use tokio::sync::Mutex;

/// One at a time: each has three servers and a dozen processes.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Runs a campaign. It needs root, for its disks, and says so otherwise.
async fn campaign(arguments: &[&str]) -> Result<(Output, String)> {
    let _alone = ALONE.lock().await;
    // The worker lies beside it.
    ensure!(!env!("CARGO_BIN_EXE_range-worker").is_empty());
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok((output, text))
}

/// A campaign with a planted bug fails, and its ledger reports one of these errors.
async fn is_reported(flaw: &str, minutes: &str, errors: &[Violation]) -> Result<()> {
    let (output, ledger) = campaign(&["--break", flaw, "--minutes", minutes]).await?;
    assert_eq!(output.status.code(), Some(1), "{ledger}");
    let is_error = |line: &str| {
        line.ends_with("| ERROR   |") && errors.iter().any(|error| line.starts_with(&format!("| {} ", error.name())))
    };
    assert!(ledger.lines().any(is_error), "{ledger}");
    Ok(())
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
    is_reported("ack-before-commit", "1", &[Violation::Lost, Violation::MoveNotOnce]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn rejecting_without_keeping_is_reported() -> Result<()> {
    is_reported("reject-drops", "1", &[Violation::PoisonNotOnce]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn rotation_without_a_fence_is_reported() -> Result<()> {
    is_reported("skipped-fence", "2", &[Violation::ClaimedTwice]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test everything"]
async fn completion_without_the_token_is_reported() -> Result<()> {
    is_reported("ignored-token", "1", &[Violation::LostToken]).await
}
