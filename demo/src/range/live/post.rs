//! The roles of the processes of a run, and the arguments of a process.

use std::{fmt, path::PathBuf};

use clap::{Args, ValueEnum};

use super::{
    config::{Field, Kind, argument},
    flaw::Flaw,
};

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Sends the commands, some of them twice.
    Producer,
    /// Handles the commands and records facts as their effects.
    Targets,
    /// Publishes the effects.
    Relay,
    /// Receives the facts and counts the hits.
    Board,
    /// Receives the facts and stores all of them, without idem.
    Observer,
    /// Writes a letter for each hit, under a lease.
    Letters,
    /// Claims the same ids from several sessions concurrently.
    Claims,
    /// Leases the same ids from several sessions, and holds some for longer than the lease.
    Leases,
    /// Sends numbered steps of a few keys.
    Steps,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&argument(self))
    }
}

/// The arguments of a process.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// The broker
    #[arg(long, value_enum)]
    pub broker: Kind,
    /// The URL of the broker
    #[arg(long)]
    pub broker_url: String,
    /// The connection string of the database
    #[arg(long)]
    pub database: String,
    /// The directory with the notes of earlier processes of this role
    #[arg(long)]
    pub dir: PathBuf,
    /// The number of messages that the producer sends per second
    #[arg(long)]
    pub per_second: u32,
    /// Handle the commands without idem
    #[arg(long)]
    pub unprotected: bool,
    /// The planted bug
    #[arg(long = "break", value_enum)]
    pub flaw: Option<Flaw>,
    /// The traffic
    #[command(flatten)]
    pub field: Field,
}

impl Post {
    /// Returns the command line that a process parses to this value.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--broker={}", argument(&self.broker)),
            format!("--broker-url={}", self.broker_url),
            format!("--database={}", self.database),
            format!("--dir={}", self.dir.display()),
            format!("--per-second={}", self.per_second),
            format!("--players={}", self.field.players),
            format!("--targets={}", self.field.targets),
            format!("--messages={}", self.field.messages),
            format!("--duplicates={}", self.field.duplicates),
            format!("--farthest={}", self.field.farthest),
            format!("--seed={}", self.field.seed),
        ];
        arguments.extend(self.unprotected.then(|| "--unprotected".to_owned()));
        arguments.extend(self.flaw.map(|flaw| format!("--break={}", argument(&flaw))));
        arguments
    }
}

/// The name of the relay. Its processes share the partitions.
pub const RELAY: &str = "range";

/// The number of partitions of the relay.
pub const RELAY_PARTITIONS: i32 = 4;

/// The destination that handles the commands.
pub const TARGETS: &str = "range.targets";

/// The destination that counts the hits.
pub const BOARD: &str = "range.board";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        post: Post,
    }

    /// A process parses its arguments to the same value.
    #[test]
    fn arguments_parse_to_the_same_post() {
        let post = Post {
            broker: Kind::RabbitMq,
            broker_url: "amqp://host/%2f".to_owned(),
            database: "host=/tmp options='-c search_path=range,public'".to_owned(),
            dir: "/tmp/run".into(),
            per_second: 60,
            unprotected: true,
            flaw: Some(Flaw::AckBeforeCommit),
            field: Field {
                players: 3,
                targets: 2,
                messages: 7,
                duplicates: 0.123,
                farthest: 700,
                seed: 99,
            },
        };
        let line = ["worker".to_owned()].into_iter().chain(post.arguments());
        let parsed = CommandLine::parse_from(line).post;
        assert_eq!(format!("{parsed:?}"), format!("{post:?}"));
    }
}
