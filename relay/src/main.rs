//! The program idem-relay, which publishes the outbox to a broker. It reads the settings, creates a
//! connection pool and a publisher, and runs the relay of `idem-runtime` until a signal stops it.

// A panic would end the relay. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod arguments;
mod broker;
mod config;
mod database;
mod environment;
mod exit;
mod http;
mod log;

use std::{convert::Infallible, io, path::Path, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::CommandFactory;
use idem_client::{preflight::relay_preflight, relay::partitions};
use idem_runtime::{Error, Publisher, Relay, relay::Topics, terminated};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::{
    arguments::Arguments,
    config::{Config, IN_THE_FILE},
    exit::{Exit, Failure},
    http::Server,
};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::read();
    match run(&arguments).await {
        Ok(()) => Exit::Stopped.into(),
        Err(failure) => failure.report(),
    }
}

/// The longest time that `--check` waits for the database and the broker.
const CHECK: Duration = Duration::from_secs(60);

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    environment::check(&Arguments::command(), &IN_THE_FILE).map_err(Failure::settings)?;
    log::start(&arguments.log, arguments.log_format).map_err(Failure::settings)?;
    let config = Config::read(arguments).map_err(Failure::settings)?;
    enter_directory_of(arguments.config.as_deref()).map_err(Failure::settings)?;
    let pool = database::pool(&config.database).map_err(Failure::settings)?;
    let publisher = broker::publisher(config.broker).map_err(Failure::settings)?;
    if arguments.check {
        let checked = tokio::time::timeout(CHECK, check(&config.relay, &pool, &publisher)).await;
        return checked.unwrap_or_else(|_| {
            let why = format!("the database and the broker did not respond within {CHECK:?}");
            Err(Error::Pool(why).into())
        });
    }

    let metrics = PrometheusBuilder::new()
        .install_recorder()
        .context("cannot start the metrics recorder")?;
    let relay = Relay::new(pool, publisher)
        .name(config.relay)
        .batch(config.publish.batch)
        .max_bytes(config.publish.max_bytes)
        .in_flight(config.publish.in_flight)
        .lease(config.publish.lease)
        .max_attempts(config.publish.max_attempts)
        .max_held_bytes(config.publish.max_held_bytes);
    // A port that is in use may be free later, so this is not an error in the settings. All other
    // I/O errors here are errors in the settings.
    let bound = Server::bind(config.http.listen, relay.status(), metrics.clone()).await;
    let http = bound.map_err(|error| match error.downcast_ref::<io::Error>() {
        Some(cause) if cause.kind() != io::ErrorKind::AddrInUse => Failure::settings(error),
        _ => error.into(),
    })?;

    tokio::select! {
        summary = relay.run(terminated()) => {
            let summary = summary?;
            tracing::info!(published = summary.published, parked = summary.parked, "stopped");
            Ok(())
        }
        never = http.run() => match never {},
        never = keep_small(&metrics) => match never {},
    }
}

/// Changes the working directory to the directory of the settings file, so that relative paths in
/// the file are relative to this directory. So the same file works for an administrator, and for a
/// service that gets copies of all files in another directory, such as credentials of systemd.
fn enter_directory_of(settings: Option<&Path>) -> anyhow::Result<()> {
    match settings.and_then(Path::parent) {
        Some(directory) if directory != Path::new("") => {
            let entered = std::env::set_current_dir(directory);
            entered.with_context(|| format!("cannot enter the directory {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Limits the memory of the metrics. Without this limit, histograms keep every value until the
/// metrics are fetched, which may never happen.
async fn keep_small(metrics: &PrometheusHandle) -> Infallible {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

/// What `--check` cannot find out, because a broker replies to it only when a message is published.
const NOT_CHECKED: &str = "not checked, because nothing is published: whether the user may publish, \
                           and whether the broker has a queue, a stream or a topic for each effect";

/// Connects to the database and the broker, and prints the result. Publishes nothing.
async fn check(
    relay: &str,
    pool: &deadpool_postgres::Pool,
    publisher: &Topics,
) -> Result<(), Failure> {
    let connection = pool.get().await.map_err(Error::from)?;
    relay_preflight(&**connection).await.map_err(Error::from)?;
    let partitions = partitions(&**connection, relay)
        .await
        .map_err(Error::from)?;
    publisher.check().await?;
    println!("relay \"{relay}\" has {partitions} partition(s), and the broker accepts connections");
    println!("{NOT_CHECKED}");
    Ok(())
}
