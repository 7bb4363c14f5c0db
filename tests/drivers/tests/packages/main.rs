//! The packages for other languages: their own tests, their types and their format, and the first
//! minutes of a new user. The consumers with the ORMs of Rust, in `tests/rust-orms`.

mod node;
mod python;
mod rust;

use std::process::Command;

use anyhow::{Result, ensure};
use idem_brokers::RabbitMq;
use idem_testkit::Database;

/// Runs a command, and returns its standard output. Fails with its output if it fails.
fn ensure_succeeds(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Runs a command that executes tests. Fails if a test fails, or if no test was executed.
fn ensure_tests_pass(command: &mut Command) -> Result<()> {
    let text = ensure_succeeds(command)?;
    ensure!(passed(&text) > 0, "{command:?}: no test has passed\n{text}");
    Ok(())
}

/// Returns the number of tests that have passed, by the summaries of pytest, Node.js and cargo.
fn passed(output: &str) -> u64 {
    let words: Vec<_> = output.split_whitespace().collect();
    let counts = words.windows(2).filter_map(|pair| match pair {
        [count, "passed" | "passed," | "passed;"] => count.parse::<u64>().ok(),
        ["pass", count] => count.parse().ok(),
        _ => None,
    });
    counts.sum()
}

#[test]
fn passed_tests_are_counted_in_each_summary() {
    assert_eq!(passed("..s\n12 passed, 1 skipped in 0.31s\n"), 12);
    assert_eq!(passed("1 skipped in 0.01s\n"), 0);
    let node = "\u{2139} tests 4\n\u{2139} pass 3\n\u{2139} skipped 1\n";
    assert_eq!(passed(&node.repeat(2)), 6);
    assert_eq!(passed("\u{2139} tests 1\n\u{2139} pass 0\n"), 0);
    let cargo = "test result: ok. 5 passed; 0 failed; 1 ignored;\n";
    assert_eq!(passed(cargo), 5);
}

/// Settings that change the texts of times and intervals. A package must not read these texts.
const OTHER_TEXTS: [&str; 3] = [
    "intervalstyle = 'iso_8601'",
    "datestyle = 'SQL, DMY'",
    "timezone = 'Asia/Kolkata'",
];

/// Settings of the transactions and of the path, in a database that has a schema `other`.
const OTHER_TRANSACTIONS: [&str; 2] = [
    "default_transaction_isolation = 'repeatable read'",
    "search_path = other, public",
];

/// Creates a database with settings.
async fn with_settings(name: &str, settings: &[&str]) -> Result<Database> {
    let db = Database::with_idem(name).await?;
    let session = db.connect().await?;
    session.run("CREATE SCHEMA other").await?;
    for setting in settings {
        session
            .run(&format!("ALTER DATABASE {} SET {setting}", db.name()))
            .await?;
    }
    Ok(db)
}

/// Returns the environment in which `rabbitmqctl` finds this server. The folder with the cookie is
/// not passed as `HOME`, because other programs use `HOME` too.
fn environment_of_control(broker: &RabbitMq) -> Result<Vec<(&'static str, String)>> {
    let values = broker.control(&[
        "eval",
        r#"[os:getenv(N) || N <- ["HOME", "RABBITMQ_NODENAME", "ERL_EPMD_PORT"]]."#,
    ])?;
    let [home, node, epmd]: [String; 3] = serde_json::from_str(&values)?;
    Ok(vec![
        ("RABBITMQ_HOME", home),
        ("RABBITMQ_NODENAME", node),
        ("ERL_EPMD_PORT", epmd),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
    ])
}
