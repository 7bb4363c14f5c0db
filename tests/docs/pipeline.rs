//! The example of docs/pipelines.md is compiled and executed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use idem_cluster::workspace_root;
use idem_testkit::Database;

/// What the example needs around it. The arguments are the connection string, the id of the
/// message, the account and the amount.
const HEAD: &str = "#include <libpq-fe.h>\n#include <stdbool.h>\n#include <stdio.h>\n";
const MAIN: &str = "
int main(int count, char **arguments)
{
    static const char *const names[] = {\"PAID\", \"DUPLICATE\", \"FAILED\"};
    PGconn *db = PQconnectdb(arguments[1]);

    if (count != 5 || PQstatus(db) != CONNECTION_OK)
        return 1;
    puts(names[pay(db, arguments[2], arguments[3], arguments[4])]);
    if (PQtransactionStatus(db) != PQTRANS_IDLE)
        return 1;
    PQfinish(db);
    return 0;
}
";

/// A message is paid once, a failed payment keeps no claim, and no transaction stays open.
#[tokio::test]
async fn libpq_example_pays_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("pay");
    compile(&program)?;
    let db = Database::with_idem("pipeline").await?;
    let session = db.connect().await?;
    session
        .run(
            "CREATE TABLE account (id bigint PRIMARY KEY);
             CREATE TABLE payment (account bigint NOT NULL REFERENCES account,
                                   amount bigint NOT NULL);
             INSERT INTO account VALUES (7)",
        )
        .await?;
    let pay = |id: &str, account: &str| run(&program, &[&db.direct_url(), id, account, "100"]);
    assert_eq!(pay("p1", "7")?, "PAID");
    assert_eq!(pay("p1", "7")?, "DUPLICATE");
    assert_eq!(pay("p2", "8")?, "FAILED", "the account does not exist");
    assert_eq!(pay("p2", "7")?, "PAID", "the failed payment is no claim");
    assert_eq!(pay("", "7")?, "FAILED", "an empty id");
    assert_eq!(session.text("SELECT count(*) FROM payment").await?, "2");
    Ok(())
}

/// The statement of the guide that claims and works: new, duplicate, and without a row to change.
#[tokio::test]
async fn one_statement_claims_and_works() -> Result<()> {
    let db = Database::with_idem("one_statement").await?;
    let session = db.connect_on_defaults().await?;
    let guide = fs::read_to_string(workspace_root().join("docs/pipelines.md"))?;
    let (_, statement) = guide.split_once("\nWITH message").context("no statement")?;
    let (statement, _) = statement.split_once(';').context("no end")?;
    let statement = |id: &str, account: &str| {
        let sql = format!("WITH message{statement}").replace("payment-1", id);
        sql.replace("id = 7", &format!("id = {account}"))
    };
    session
        .run(
            "CREATE TABLE account (id bigint PRIMARY KEY, paid bigint NOT NULL);
             INSERT INTO account SELECT n, 0 FROM generate_series(1, 5000) n; ANALYZE account",
        )
        .await?;
    for (id, account, expected) in [
        ("p1", "7", "t|1"),
        ("p1", "7", "f|0"),
        ("p2", "9999", "t|0"),
        ("p2", "7", "f|0"),
    ] {
        let returned = session.text(&statement(id, account)).await?;
        assert_eq!(returned, expected, "{id} {account}");
    }
    assert_eq!(session.text("SELECT sum(paid) FROM account").await?, "100");
    Ok(())
}

fn compile(program: &Path) -> Result<()> {
    let guide = fs::read_to_string(workspace_root().join("docs/pipelines.md"))?;
    let (_, example) = guide.split_once("```c\n").context("no example")?;
    let (example, _) = example.split_once("```").context("an open block")?;
    let source = program.with_extension("c");
    fs::write(&source, format!("{HEAD}{example}{MAIN}"))?;
    let headers = Command::new("pg_config").arg("--includedir").output()?;
    ensure!(headers.status.success(), "pg_config failed");
    let headers = String::from_utf8(headers.stdout)?;
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I", headers.trim()])
        .arg(&source)
        .arg("-o")
        .arg(program)
        .arg("-lpq")
        .output()?;
    ensure!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    Ok(())
}

fn run(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::piped())
        .output()?;
    let (printed, errors) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    ensure!(output.status.success(), "{printed}{errors}");
    let outcome = printed.trim().to_owned();
    ensure!(
        errors.is_empty() == (outcome != "FAILED"),
        "{outcome}, but the errors are: {errors}"
    );
    Ok(outcome)
}
