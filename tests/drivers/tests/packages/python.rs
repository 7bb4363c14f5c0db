//! `packages/python`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use idem_brokers::RabbitMq;
use idem_cluster::workspace_root;
use idem_drivers::install;
use idem_testkit::Database;

use crate::{
    OTHER_TEXTS, OTHER_TRANSACTIONS, ensure_succeeds, ensure_tests_pass, environment_of_control,
    with_settings,
};

/// Returns the command that runs a module of Python in the folder of the package.
fn module(name: &str) -> Result<Command> {
    let mut command = install::python_package()?;
    command.args(["-m", name]);
    Ok(command)
}

fn on(db: &Database, mut command: Command) -> Command {
    db.cluster().set_server_of(&mut command);
    command.env("PGDATABASE", db.name()).env("PGPORT", "5432");
    command
}

/// The tests of the package, with every driver and ORM that it supports.
#[tokio::test]
async fn tests_of_the_python_package_pass() -> Result<()> {
    let db = Database::with_idem("packages_python").await?;
    let mut pytest = on(&db, module("pytest")?);
    ensure_tests_pass(pytest.args(["--quiet", "--color=no"]))
}

/// The same tests with other settings of the session. The package sets the isolation level that a
/// function needs, where the transaction is its own.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn tests_of_the_python_package_pass_with_other_settings() -> Result<()> {
    let settings = [&OTHER_TEXTS[..], &OTHER_TRANSACTIONS].concat();
    let db = with_settings("packages_python_settings", &settings).await?;
    let mut pytest = on(&db, module("pytest")?);
    ensure_tests_pass(pytest.args(["--quiet", "--color=no"]))
}

/// The tests of the recipes that consume from RabbitMQ.
const WITH_RABBITMQ: [&str; 3] = [
    "recipes/test_aio_pika.py",
    "recipes/test_celery.py",
    "recipes/test_dramatiq.py",
];

/// The test of the recipe that consumes from Kafka.
const WITH_KAFKA: &str = "recipes/test_confluent_kafka.py";

/// Returns the command that tests recipes, which need further packages.
fn recipes(db: &Database) -> Result<Command> {
    let mut pytest = on(db, install::python_recipes()?);
    pytest.args(["-m", "pytest", "--quiet", "--color=no"]);
    Ok(pytest)
}

/// The programs in `recipes` that are no consumers.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn recipes_of_python_run() -> Result<()> {
    let db = Database::with_idem("packages_recipes").await?;
    let mut pytest = recipes(&db)?;
    for consumer in WITH_RABBITMQ.iter().chain([&WITH_KAFKA]) {
        pytest.arg(format!("--ignore={consumer}"));
    }
    ensure_tests_pass(pytest.arg("recipes"))
}

/// Each consumer is killed before a commit and before an acknowledgement. Each message takes effect
/// once. The same consumers without claims charge payments again.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn rabbitmq_recipes_of_python_run() -> Result<()> {
    let db = Database::with_idem("packages_recipes_rabbitmq").await?;
    let broker = RabbitMq::start()?;
    let mut pytest = recipes(&db)?;
    pytest.envs(environment_of_control(&broker)?);
    ensure_tests_pass(pytest.env("AMQP_URL", broker.url()).args(WITH_RABBITMQ))
}

/// As with RabbitMQ. The test starts the mock cluster of librdkafka itself.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn kafka_recipe_of_python_runs() -> Result<()> {
    let db = Database::with_idem("packages_recipes_kafka").await?;
    ensure_tests_pass(recipes(&db)?.arg(WITH_KAFKA))
}

#[test]
fn python_package_is_typed_and_formatted() -> Result<()> {
    let cache = workspace_root().join("target/drivers/cache");
    let mut mypy = module("mypy")?;
    ensure_succeeds(mypy.arg("--cache-dir").arg(cache.join("mypy")))?;
    ensure_succeeds(module("ruff")?.args(["check", "--no-cache"]))?;
    ensure_succeeds(module("ruff")?.args(["format", "--check", "--no-cache"]))?;
    Ok(())
}

/// Builds the wheel, and returns its path.
fn wheel() -> Result<String> {
    let folder = workspace_root().join("target/drivers/wheels");
    let mut hatchling = module("hatchling")?;
    hatchling.args(["build", "-t", "wheel", "--clean", "-d"]);
    ensure_succeeds(hatchling.arg(&folder))?;
    let wheel = fs::read_dir(&folder)?
        .next()
        .context("there is no wheel")??;
    Ok(wheel.path().display().to_string())
}

/// A new user installs the wheel into an empty environment, and runs the first example of the
/// README: the duplicate changes nothing.
#[tokio::test]
async fn new_user_runs_the_first_example_in_python() -> Result<()> {
    let wheel = wheel()?;
    let environment = install::new_environment("new-user", &[&wheel, "psycopg[binary]==3.3.9"])?;

    let readme = fs::read_to_string(workspace_root().join("packages/python/README.md"))?;
    let example = readme.split("```python\n").nth(1).context("no example")?;
    let example = example.split("```").next().context("no example")?;
    let db = Database::with_idem("packages_new_user").await?;
    let session = db.connect().await?;
    let table = "CREATE TABLE account (id int PRIMARY KEY, balance int);
                 INSERT INTO account VALUES (7, 1000)";
    session.run(table).await?;
    let mut python = on(&db, Command::new(environment.join("bin/python")));
    ensure_succeeds(python.current_dir(&environment).args(["-c", example]))?;
    let balance = session.text("SELECT balance FROM account").await?;
    ensure!(balance == "500", "the balance is {balance}");
    Ok(())
}
