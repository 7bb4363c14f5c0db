//! Throwaway brokers and proxies for tests, on free loopback ports, with their data under
//! `target/`.
//!
//! The programs are those of Debian's packages, which `cargo xtask setup` installs. A server is
//! started, used and removed: no process of the server outlives its owner, however the owner ends.
//! The error of a server that cannot start ends with the last lines of its log.
//!
//! ```no_run
//! use idem_brokers::Nats;
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut nats = Nats::start()?;
//! let url = nats.url();
//! nats.kill()?;
//! nats.start_again()?; // the same url, the same data
//! # Ok(())
//! # }
//! ```

mod authority;
mod mail;
mod nats;
mod pgbouncer;
mod port;
mod rabbitmq;
mod redis;
mod server;

pub use authority::{Authority, Certified, Validity};
pub use mail::MailSink;
pub use nats::Nats;
pub use pgbouncer::PgBouncer;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use server::Server;
