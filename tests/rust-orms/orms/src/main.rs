//! Runs the consumer of an ORM until the queue is empty:
//! `idem-rust-orms <seaorm|diesel> <connection string> [before-commit|after-commit] [no-claim]`.

use std::env;

use anyhow::{Context, Result, bail};
use diesel_async::{AsyncConnection, AsyncPgConnection};
use idem_rust_orms::consumers::{Faults, Point, diesel, seaorm};
use sea_orm::Database;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let orm = arguments.next().context("no ORM")?;
    let url = arguments.next().context("no connection string")?;
    let mut faults = Faults::default();
    for argument in arguments {
        match &*argument {
            "before-commit" => faults.stop_at = Some(Point::BeforeCommit),
            "after-commit" => faults.stop_at = Some(Point::AfterCommit),
            "no-claim" => faults.is_without_claim = true,
            other => bail!("unknown argument {other:?}"),
        }
    }
    match &*orm {
        "seaorm" => seaorm::consume(&Database::connect(&url).await?, faults).await,
        "diesel" => diesel::consume(&mut AsyncPgConnection::establish(&url).await?, faults).await,
        other => bail!("unknown ORM {other:?}"),
    }
}
