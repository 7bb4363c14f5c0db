//! The drivers behind PgBouncer in transaction mode.

use std::process::Command;

use anyhow::Result;
use idem_brokers::PgBouncer;
use idem_drivers::{Program, install};
use idem_spec::{Case, all};
use idem_testkit::Database;

use crate::native::PGX;
use crate::node::POSTGRES_JS;
use crate::python::ASYNCPG;
use crate::{Known, ensure_passes};

/// Executes Python with a library whose function `connect` has one further argument. The arguments
/// are the library, the argument, and those of the program.
const CONNECT_WITH: &str = "
import functools, importlib, os, runpy, sys
library = importlib.import_module(sys.argv[1])
option = eval('dict(' + sys.argv[2] + ')')
library.connect = functools.partial(library.connect, **option)
del sys.argv[:3]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// Returns the command of a driver of Python that connects with this option.
fn python_with(driver: &str, option: &str) -> Result<Command> {
    let plain = install::python(driver)?;
    let mut python = Command::new(plain.get_program());
    python.args(["-c", CONNECT_WITH, driver, option]);
    python.args(plain.get_args());
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(python)
}

/// Returns the command of a driver with one further argument.
fn with(mut driver: Command, option: &str) -> Command {
    driver.arg(option);
    driver
}

/// Executes the cases with a driver that connects to PgBouncer. A case that changes a setting of
/// its session is not executed: another client inherits the session and its setting.
async fn ensure_passes_behind_pgbouncer(
    name: &str,
    driver: Command,
    known: &[Known<'_>],
) -> Result<()> {
    let db = Database::with_idem(name).await?;
    let pgbouncer = PgBouncer::start(db.cluster(), db.name())?;
    let address = pgbouncer.connection_string();
    let address = address
        .replace("host=", "PGHOST=")
        .replace("port=", "PGPORT=");
    let mut behind = Command::new("env");
    let is_address = |word: &&str| word.starts_with("PG");
    behind.args(address.split(' ').filter(is_address));
    behind.arg(driver.get_program()).args(driver.get_args());
    for (name, value) in driver.get_envs() {
        match value {
            Some(value) => behind.env(name, value),
            None => behind.env_remove(name),
        };
    }
    if let Some(folder) = driver.get_current_dir() {
        behind.current_dir(folder);
    }
    let cases: Vec<_> = all()?.into_iter().filter(keeps_settings).collect();
    ensure_passes(&mut Program::start(behind, &db)?, &cases, known).await
}

fn keeps_settings(case: &Case) -> bool {
    !case.steps.iter().any(|step| step.sql().starts_with("SET "))
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn psycopg_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer(
        "pgbouncer_psycopg",
        python_with("psycopg", "prepare_threshold=None")?,
        &[],
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn asyncpg_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer(
        "pgbouncer_asyncpg",
        python_with("asyncpg", "statement_cache_size=0")?,
        &ASYNCPG,
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn node_postgres_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer("pgbouncer_node_postgres", install::node("pg")?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn postgres_js_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer(
        "pgbouncer_postgres_js",
        install::node("postgres")?,
        &POSTGRES_JS,
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn pgjdbc_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer(
        "pgbouncer_pgjdbc",
        with(install::java("pgjdbc")?, "prepareThreshold=0"),
        &[],
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn pgx_passes_the_cases_behind_pgbouncer() -> Result<()> {
    ensure_passes_behind_pgbouncer(
        "pgbouncer_pgx",
        with(install::go("pgx")?, "statement_cache_mode=describe"),
        &[PGX],
    )
    .await
}
