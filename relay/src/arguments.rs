//! The command line. Every option can come from the environment, and most of them from the file.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Parser, ValueEnum};

/// Publishes the outbox of idem to a broker: what consumers recorded with `idem_record_effects` and
/// what producers sent with `idem_send` leaves the database in order, with confirmation, and is
/// acknowledged then.
///
/// Run as many of these as you like: they share the partitions of the relay and take over from one
/// that dies. An effect is published at least once, always under the same message id; consumers
/// that claim by it process it once.
#[derive(Parser, Debug)]
#[command(
    name = "idem-relay",
    version,
    max_term_width = 110,
    after_help = AFTER_HELP
)]
pub struct Arguments {
    /// A file with all settings; what is given here or in the environment goes before it
    #[arg(long, value_name = "FILE", env = "IDEM_RELAY_CONFIG")]
    pub config: Option<PathBuf>,

    /// Where the database is: a URL or key=value pairs, as for psql
    #[arg(
        long,
        value_name = "URL",
        env = "IDEM_RELAY_DATABASE_URL",
        hide_env_values = true
    )]
    pub database_url: Option<String>,

    /// The relay to work for; `idem_create_relay` makes more of them [default: default]
    #[arg(long, value_name = "NAME", env = "IDEM_RELAY_NAME")]
    pub relay: Option<String>,

    /// What kind of broker to publish to
    #[arg(long, value_enum, env = "IDEM_RELAY_BROKER")]
    pub broker: Option<BrokerKind>,

    /// Where the broker is: amqp://…, nats://…, or for Kafka host:port[,host:port…]
    #[arg(
        long,
        value_name = "URL",
        env = "IDEM_RELAY_BROKER_URL",
        hide_env_values = true
    )]
    pub broker_url: Option<String>,

    /// Where /livez, /readyz and /metrics are served [default: 127.0.0.1:9187]
    #[arg(long, value_name = "ADDRESS", env = "IDEM_RELAY_LISTEN")]
    pub listen: Option<SocketAddr>,

    /// What is logged: a level, or directives such as `info,idem_client=debug`. Empty is the
    /// default
    #[arg(long, value_name = "FILTER", env = "IDEM_RELAY_LOG", default_value = crate::log::DEFAULT)]
    pub log: String,

    /// How a line of the log looks
    #[arg(long, value_enum, env = "IDEM_RELAY_LOG_FORMAT", default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,

    /// Read the settings, connect to the database, the relay and the broker, say what was found,
    /// and leave
    #[arg(long)]
    pub check: bool,
}

/// The brokers that it can publish to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BrokerKind {
    /// RabbitMQ, with publisher confirms
    Rabbitmq,
    /// NATS JetStream
    Nats,
    /// Kafka
    Kafka,
}

impl BrokerKind {
    /// The name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rabbitmq => "rabbitmq",
            Self::Nats => "nats",
            Self::Kafka => "kafka",
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// An object a line, for machines
    Json,
    /// For people
    Text,
}

const AFTER_HELP: &str = "\
Example:
  idem-relay --database-url postgres://relay@db/shop --broker rabbitmq --broker-url amqp://broker

A file:
  relay = \"default\"
  [database]
  url = \"postgres://relay@db/shop\"
  [broker]
  kind = \"rabbitmq\"
  url = \"amqp://broker\"
  [publish]
  batch = 500
  max-attempts = 10

The role of the database needs: SELECT idem_grant('relay', 'relay');

It stops on SIGTERM or SIGINT: what is under way is finished and acknowledged.

Exit codes:
  0  stopped as it was told to
  1  something unexpected, or the address to listen on is taken; the log says what
  2  wrong usage or settings: nothing was begun
  3  the environment, with --check: database or broker cannot be reached or refuses, no such
     relay, not granted, extension not installed. Without --check it waits for all of these
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
