//! A database for one test.

use std::{thread, time::Duration};

use tokio::{
    runtime,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Config, error::SqlState};
use uuid::Uuid;

use super::{
    TestError,
    connection::{open, to_string},
};

/// How often CREATE DATABASE and DROP DATABASE are tried while other sessions use the database.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(200);

/// The longest time that dropping a database at the end of a test takes.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// A database with the extension, for one test. It is dropped with this value, also after a panic.
///
/// The name of the database begins with `idem_test_`. A process that is killed leaves its databases
/// behind, and they can be recognized by this name.
///
/// Dropping the value closes all connections to the database and blocks the thread until the
/// database is dropped. An error is printed to the standard error. [`remove`](Self::remove) returns
/// the error instead.
#[derive(Debug)]
#[must_use = "dropping it drops the database"]
pub struct TestDatabase {
    name: String,
    /// The settings of the database that the connection string names. This database exists before
    /// and after the test.
    maintenance: Config,
    is_removed: bool,
}

impl TestDatabase {
    /// Creates a database and the extension in it.
    ///
    /// `connection_string` names a server and a role that may create databases and the extension,
    /// for example `host=localhost user=postgres`. The connections do not use TLS.
    ///
    /// Fails with [`TestError::CreateExtension`] if the server does not have the extension.
    pub async fn create(connection_string: &str) -> Result<Self, TestError> {
        let maintenance: Config = connection_string
            .parse()
            .map_err(TestError::ConnectionString)?;
        if maintenance.get_hosts().is_empty() && maintenance.get_hostaddrs().is_empty() {
            return Err(TestError::NoHost);
        }
        let client = open(&maintenance).await?;
        // Create this value before the database, so that the database is also dropped if a later
        // step fails or the future is dropped.
        let database = Self {
            name: format!("idem_test_{}", Uuid::new_v4().simple()),
            maintenance,
            is_removed: false,
        };
        let sql = format!("CREATE DATABASE {}", database.name);
        when_unused(&client, &sql)
            .await
            .map_err(|error| TestError::CreateDatabase {
                name: database.name.clone(),
                error,
            })?;
        database
            .connect()
            .await?
            .batch_execute("CREATE EXTENSION IF NOT EXISTS idem")
            .await
            .map_err(TestError::CreateExtension)?;
        Ok(database)
    }

    /// Returns the name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the settings of a connection to the database.
    pub fn config(&self) -> Config {
        let mut config = self.maintenance.clone();
        config.dbname(&self.name);
        config
    }

    /// Returns the connection string of the database, for an application that reads one. It
    /// contains the password.
    pub fn connection_string(&self) -> String {
        to_string(&self.config())
    }

    /// Opens a connection to the database, without TLS.
    pub async fn connect(&self) -> Result<Client, TestError> {
        open(&self.config()).await
    }

    /// Drops the database now, and closes all connections to it. Returns the error that a drop of
    /// the value would only print.
    pub async fn remove(mut self) -> Result<(), TestError> {
        drop_database(&self.maintenance, &self.name).await?;
        self.is_removed = true;
        Ok(())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        // Use a separate thread: the runtime of the test cannot run a future to its end inside of
        // `drop`, and may be shutting down.
        let dropped = thread::scope(|scope| {
            scope
                .spawn(|| drop_in_own_runtime(&self.maintenance, &self.name))
                .join()
        });
        match dropped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("idem-client: {error}"),
            Err(_) => eprintln!("idem-client: the drop of {} panicked", self.name),
        }
    }
}

fn drop_in_own_runtime(maintenance: &Config, name: &str) -> Result<(), TestError> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        timeout(DROP_TIMEOUT, drop_database(maintenance, name))
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
    })
}

async fn drop_database(maintenance: &Config, name: &str) -> Result<(), TestError> {
    let client = open(maintenance).await?;
    let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    when_unused(&client, &sql)
        .await
        .map_err(|error| TestError::DropDatabase {
            name: name.to_owned(),
            error,
        })
}

/// Executes a statement. Repeats it while other sessions use the database (55006): the template of
/// CREATE DATABASE, or the dropped database, to which the maintenance worker may connect again.
async fn when_unused(client: &Client, sql: &str) -> Result<(), tokio_postgres::Error> {
    for _ in 1..ATTEMPTS {
        match client.batch_execute(sql).await {
            Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => sleep(PAUSE).await,
            executed => return executed,
        }
    }
    client.batch_execute(sql).await
}
