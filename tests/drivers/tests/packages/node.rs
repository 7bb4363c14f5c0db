//! `packages/node`.

use std::process::Command;

use anyhow::{Result, ensure};
use idem_brokers::{Nats, RabbitMq, Redis};
use idem_cluster::workspace_root;
use idem_drivers::install;
use idem_testkit::Database;
use rdkafka::mocking::MockCluster;

use crate::{
    OTHER_TEXTS, ensure_succeeds, ensure_tests_pass, environment_of_control, with_settings,
};

fn on(db: &Database, mut command: Command) -> Command {
    db.cluster().set_server_of(&mut command);
    command.env("PGDATABASE", db.name()).env("PGPORT", "5432");
    command
}

/// The tests of the package, which execute the specification cases too. They are compiled first, so
/// the sources, the tests and the tests of types have no error of type.
#[tokio::test]
async fn tests_of_the_node_package_pass() -> Result<()> {
    let db = Database::with_idem("packages_node").await?;
    let mut node = on(&db, install::node_package()?);
    node.env("IDEM_CASES", workspace_root().join("tests/spec/cases"));
    ensure_tests_pass(node.arg("scripts/test.mjs"))
}

/// The tests of the package with Prisma and TypeORM, and their types.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn tests_with_the_large_orms_of_node_pass() -> Result<()> {
    let db = Database::with_idem("packages_node_orms").await?;
    ensure_tests_pass(on(&db, install::node_package_orms()?).arg("scripts/test-orms.mjs"))
}

/// The tests of the package with the oldest versions of Node.js that it supports, and with settings
/// that change the texts of times and intervals.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn tests_of_the_node_package_pass_with_old_versions() -> Result<()> {
    let db = with_settings("packages_node_versions", &OTHER_TEXTS).await?;
    let mut node = on(&db, install::node_package_versions()?);
    node.env("IDEM_CASES", workspace_root().join("tests/spec/cases"));
    ensure_tests_pass(node.arg("scripts/test-versions.mjs"))
}

/// Each consumer is killed before a commit and before an acknowledgement. Each message takes effect
/// once. The same consumers without claims charge payments again, and lose payments if they
/// acknowledge before the commit.
///
/// The recipes run one after the other, because they are compiled in the same folder.
#[tokio::test]
#[ignore = "runs with: cargo xtask test packages"]
async fn recipes_of_node_run() -> Result<()> {
    let db = Database::with_idem("packages_node_recipes").await?;
    let (rabbitmq, nats, redis) = (RabbitMq::start()?, Nats::start()?, Redis::start()?);
    let kafka = MockCluster::new(1)?;
    kafka.create_topic("payments", 4, 1)?;
    let mut node = on(&db, install::node_package_recipes()?);
    node.arg("scripts/test-recipes.mjs");
    node.envs(environment_of_control(&rabbitmq)?);
    node.env("AMQP_URL", rabbitmq.url());
    node.env("KAFKA_BROKERS", kafka.bootstrap_servers());
    node.env("NATS_URL", nats.url());
    ensure_tests_pass(node.env("REDIS_URL", redis.url()))
}

#[test]
fn node_package_is_linted() -> Result<()> {
    let mut node = install::node_package()?;
    ensure_succeeds(node.args(["node_modules/eslint/bin/eslint.js", "."]))?;
    Ok(())
}

/// A new user installs the archive into an empty folder, and runs the first example of the README:
/// the duplicate changes nothing. All examples compile.
#[tokio::test]
async fn new_user_runs_the_first_example_in_node() -> Result<()> {
    let db = Database::with_idem("packages_node_user").await?;
    let mut node = on(&db, install::node_package()?);
    let said = ensure_succeeds(node.arg("scripts/check-package.mjs"))?;
    ensure!(said.contains("the package is complete"), "{said}");
    Ok(())
}
