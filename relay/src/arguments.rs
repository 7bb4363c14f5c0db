//! The command line. Every option with a value can also be set in the environment, and most of them
//! in the settings file.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::{environment, log::LogFormat};

/// Publishes the outbox of idem to a broker: the effects that consumers recorded with
/// `idem_record_effects`, and the messages that producers sent with `idem_send`. They are published
/// in order, and are acknowledged in the database when the broker has confirmed them.
///
/// Several processes can run at the same time. They share the partitions of the relay, and take
/// over the partitions of a process that dies. An effect is published at least once, always under
/// the same message id. Consumers that claim by this id process it once.
#[derive(Parser, Debug)]
#[command(
    name = "idem-relay",
    version,
    max_term_width = 110,
    after_help = AFTER_HELP
)]
pub struct Arguments {
    /// A file with the settings. Arguments and environment variables override it
    #[arg(long, value_name = "FILE", env = "IDEM_RELAY_CONFIG")]
    pub config: Option<PathBuf>,

    /// The connection string of the database: a URL or key=value pairs, as for psql
    #[arg(
        long,
        value_name = "URL",
        env = "IDEM_RELAY_DATABASE_URL",
        hide_env_values = true
    )]
    pub database_url: Option<String>,

    /// The name of the relay. `idem_create_relay` creates relays [default: default]
    #[arg(long, value_name = "NAME", env = "IDEM_RELAY_NAME")]
    pub relay: Option<String>,

    /// The kind of the broker
    #[arg(long, value_enum, env = "IDEM_RELAY_BROKER")]
    pub broker: Option<BrokerKind>,

    /// The address of the broker: amqp://…, nats://…, or for Kafka host:port[,host:port…]
    #[arg(
        long,
        value_name = "URL",
        env = "IDEM_RELAY_BROKER_URL",
        hide_env_values = true
    )]
    pub broker_url: Option<String>,

    /// The address and port at which /livez, /readyz and /metrics are served
    /// [default: 127.0.0.1:9187]
    #[arg(long, value_name = "ADDRESS", env = "IDEM_RELAY_LISTEN")]
    pub listen: Option<String>,

    /// The log filter: a level, or directives such as `info,idem_runtime=debug`. An empty filter is
    /// the default
    #[arg(long, value_name = "FILTER", env = "IDEM_RELAY_LOG", default_value = crate::log::DEFAULT)]
    pub log: String,

    /// The format of the log
    #[arg(long, value_enum, env = "IDEM_RELAY_LOG_FORMAT", default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,

    /// Check the settings, connect to the database and the broker, look up the relay, print the
    /// result and what is not checked, and exit. Publishes nothing
    #[arg(long)]
    pub check: bool,
}

impl Arguments {
    /// Reads the command line and the environment. Ends the program if they are not valid.
    pub fn read() -> Self {
        let matches = environment::without_empty(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The supported kinds of brokers.
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
    /// Returns the name of this kind in the settings file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rabbitmq => "rabbitmq",
            Self::Nats => "nats",
            Self::Kafka => "kafka",
        }
    }
}

const AFTER_HELP: &str = "\
Example:
  idem-relay --database-url postgres://relay@db/shop --broker rabbitmq --broker-url amqp://broker

Settings file:
  relay = \"default\"
  [database]
  url = \"postgres://relay@db/shop\"
  [broker]
  kind = \"rabbitmq\"
  url = \"amqp://broker\"
  [publish]
  batch = 500
  max-attempts = 10

The database role needs: SELECT idem_grant('relay', 'relay');

SIGTERM and SIGINT stop the program. It first finishes and acknowledges the effects that it is
publishing.

Exit codes:
  0  stopped by a signal, or --check found no problem
  1  unexpected error, or the --listen address is in use; see the log
  2  invalid usage or settings; nothing was started
  3  only with --check: the database or the broker cannot be reached or rejects the login, the
     relay does not exist, a grant is missing, or the extension is not installed.
     Without --check the program waits until these problems are solved
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
