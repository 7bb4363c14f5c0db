//! `tests/rust-orms`: consumers with SeaORM and diesel-async, and checked queries of sqlx.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use idem_cluster::workspace_root;
use idem_drivers::install::rust_orms;
use idem_testkit::Database;

use crate::{ensure_succeeds, ensure_tests_pass};

/// Lets the programs connect to the database, and sqlx check their queries on it.
fn on(db: &Database, mut cargo: Command) -> Command {
    let host = db.cluster().socket_dir().display().to_string();
    let url = format!(
        "postgres://postgres@localhost:5432/{}?host={host}",
        db.name()
    );
    db.cluster().set_server_of(&mut cargo);
    cargo.env("DATABASE_URL", format!("{url}&sslmode=disable"));
    cargo.env("PGPORT", "5432").env("PGDATABASE", db.name());
    cargo
}

/// Creates a database with the tables of the programs.
async fn database(name: &str) -> Result<Database> {
    let db = Database::with_idem(name).await?;
    let session = db.connect().await?;
    for program in ["checked", "overhead"] {
        let schema = workspace_root().join(format!("tests/rust-orms/{program}/schema.sql"));
        session.run(&fs::read_to_string(schema)?).await?;
    }
    Ok(db)
}

/// The consumers are killed before a commit and before an acknowledgement. Each message is paid
/// once. The same consumers without claims pay twice.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn consumers_with_the_orms_of_rust_pay_once() -> Result<()> {
    let db = database("packages_rust_orms").await?;
    ensure_tests_pass(on(&db, rust_orms()?).args(["test", "--locked", "--workspace"]))
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn consumers_with_the_orms_of_rust_are_linted() -> Result<()> {
    ensure_succeeds(rust_orms()?.args(["fmt", "--all", "--check"]))?;
    let db = database("packages_rust_orms_clippy").await?;
    let mut clippy = on(&db, rust_orms()?);
    clippy.args(["clippy", "--locked", "--workspace", "--all-targets"]);
    ensure_succeeds(clippy.args(["--", "-D", "warnings"]))?;
    Ok(())
}

/// Goal: sqlx checks the types of the parameters of idem's functions. Invariant: I10.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn number_as_an_id_does_not_compile() -> Result<()> {
    let db = database("packages_rust_checked").await?;
    let mut check = on(&db, rust_orms()?);
    check.args(["check", "--locked", "--package", "idem-checked"]);
    check.args(["--features", "wrong-type"]);
    let output = check.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "the program compiles");
    ensure!(errors.contains("expected `&str`, found `i32`"), "{errors}");
    Ok(())
}

/// The examples of the guide are parts of the programs that the other tests execute.
#[test]
fn examples_of_the_guide_are_parts_of_the_programs() -> Result<()> {
    let folder = workspace_root().join("tests/rust-orms");
    let programs = [
        "orms/src/consumers/seaorm.rs",
        "orms/src/consumers/diesel.rs",
        "checked/src/lib.rs",
    ];
    let programs = programs.map(|program| fs::read_to_string(folder.join(program)));
    let programs = programs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let guide = fs::read_to_string(workspace_root().join("docs/rust-orms.md"))?;
    let examples: Vec<_> = guide.split("```rust program\n").skip(1).collect();
    ensure!(examples.len() >= programs.len(), "examples are missing");
    for example in examples {
        let example = example.split("```").next().context("no end")?;
        let is_tested = programs.iter().any(|program| program.contains(example));
        ensure!(is_tested, "no program contains this example:\n{example}");
    }
    Ok(())
}
