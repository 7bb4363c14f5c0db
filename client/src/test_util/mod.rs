//! Helpers for the tests of applications: a database for each test, forced duplicates, and forced
//! crashes around COMMIT. They need the feature `test-util`.
//!
//! An exactly-once consumer has three cases that occur rarely by themselves: the message is a
//! duplicate, the connection is lost before COMMIT, and the connection is lost after COMMIT. This
//! test forces the last of them:
//!
//! ```no_run
//! use idem_client::{
//!     Claim, Destination, ErrorKind, MessageId, begin_and_claim,
//!     test_util::{Crash, CrashProxy, TestDatabase},
//! };
//!
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! let database = TestDatabase::create("host=localhost user=postgres").await?;
//! let proxy = CrashProxy::start(&database.config()).await?;
//! let (id, to) = (MessageId::text("order-4711")?, Destination::new("shipping.book")?);
//!
//! let mut client = proxy.connect().await?;
//! let Claim::New(tx) = begin_and_claim(&mut client, &id, &to).await? else {
//!     panic!("a new id is a duplicate");
//! };
//! proxy.crash_once(Crash::AfterCommit);
//! let error = tx.commit().await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::AmbiguousCommit);
//!
//! // The broker delivers the message again. The transaction has committed, so it is a duplicate.
//! let mut client = proxy.connect().await?;
//! assert!(begin_and_claim(&mut client, &id, &to).await?.is_duplicate());
//! # Ok(()) }
//! ```

mod commit;
mod connection;
mod database;
mod protocol;
mod proxy;
#[cfg(test)]
mod proxy_tests;

use std::io;

use tokio_postgres::Client;

use crate::{Claim, Destination, Error, MessageId, begin_and_claim, redacted::describe};

pub use database::TestDatabase;
pub use proxy::{Crash, CrashProxy};

/// An error of the helpers themselves, and not of the code under test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// The connection string cannot be parsed.
    #[error("invalid connection string: {}", describe(.0))]
    ConnectionString(#[source] tokio_postgres::Error),
    /// The connection string names no host.
    #[error("the connection string names no host")]
    NoHost,
    /// The helper cannot connect to the server.
    #[error("cannot connect to the server: {}", describe(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The server cannot create the database.
    #[error("cannot create the database {name:?}: {}", describe(.error))]
    CreateDatabase {
        /// The name of the database.
        name: String,
        /// The error of the server.
        #[source]
        error: tokio_postgres::Error,
    },
    /// The server cannot create the extension, for example because it is not installed.
    #[error("cannot create the extension idem: {}", describe(.0))]
    CreateExtension(#[source] tokio_postgres::Error),
    /// The server cannot drop the database.
    #[error("cannot drop the database {name:?}: {}", describe(.error))]
    DropDatabase {
        /// The name of the database.
        name: String,
        /// The error of the server.
        #[source]
        error: tokio_postgres::Error,
    },
    /// The proxy cannot listen, or the runtime that drops a database cannot start.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Makes the next claim of a message a duplicate: claims the message in a transaction of its own
/// and commits.
///
/// `client` is a connection without an open transaction. A connection of a pool dereferences to it:
/// `force_duplicate(&mut pool.get().await?, …)`. Does nothing if the message is a duplicate
/// already.
///
/// Fails as [`begin_and_claim`] and
/// [`ClaimedTransaction::commit`](crate::ClaimedTransaction::commit) fail.
pub async fn force_duplicate(
    client: &mut Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<(), Error> {
    match begin_and_claim(client, id, destination).await? {
        Claim::New(tx) => tx.commit().await,
        _ => Ok(()),
    }
}
