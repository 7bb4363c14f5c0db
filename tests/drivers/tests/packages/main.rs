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

/// Creates a database with settings that change the texts of times and intervals. A package must not
/// read these texts.
async fn with_other_settings(name: &str) -> Result<Database> {
    let db = Database::with_idem(name).await?;
    let session = db.connect().await?;
    for setting in [
        "intervalstyle = 'iso_8601'",
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Kolkata'",
    ] {
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
