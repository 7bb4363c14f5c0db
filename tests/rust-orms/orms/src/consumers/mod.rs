//! A consumer with each ORM.

pub mod diesel;
pub mod seaorm;

/// Where a test kills the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    BeforeCommit,
    AfterCommit,
}

/// What a test changes in a consumer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Where the consumer stops until it is killed.
    pub stop_at: Option<Point>,
    /// The consumer does not claim, so a redelivery takes effect again.
    pub is_without_claim: bool,
}

impl Faults {
    /// Reports the point to the test and waits to be killed, if the consumer stops here.
    pub async fn reached(&self, point: Point) {
        if self.stop_at == Some(point) {
            println!("stopped");
            std::future::pending::<()>().await;
        }
    }
}

/// A message of the queue.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub account: i32,
    pub cents: i64,
}

/// The tables of the consumers. A message stays in `queue` until it is acknowledged.
pub const TABLES: &str = "
    CREATE TABLE queue (id text PRIMARY KEY, account integer NOT NULL, cents bigint NOT NULL);
    CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE payment (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account integer NOT NULL REFERENCES account,
        message text,
        cents bigint NOT NULL CHECK (cents > 0)
    );
    INSERT INTO account VALUES (7, 1000)";
