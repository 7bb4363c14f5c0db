//! The packages for other languages: their own tests, their types and their format, and the first
//! minutes of a new user. The consumers with the ORMs of Rust, in `tests/rust-orms`.

mod node;
mod python;
mod rust;

use std::process::Command;

use anyhow::{Result, ensure};
use idem_brokers::RabbitMq;
use idem_testkit::Database;

/// Runs a command. Fails with its output if it fails.
fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
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
