//! The settings: a file, and what the command line and the environment put before it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Error, Result, anyhow, ensure};
use idem_client::{KafkaConfig, NatsConfig, RabbitMqConfig, RelayDefaults, without_value};
use serde::Deserialize;
use toml::{Table, Value};

use crate::arguments::{Arguments, BrokerKind};

/// All settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The relay to work for.
    #[serde(default = "default_relay")]
    pub relay: String,
    pub database: Database,
    pub broker: Broker,
    #[serde(default)]
    pub publish: Publish,
    #[serde(default)]
    pub http: Http,
}

/// Where the effects are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Database {
    /// A URL or key=value pairs, as for psql.
    pub url: String,
    /// At most so many connections.
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// PEM certificates of the authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The schema of the extension, when the `search_path` of the role does not have it.
    pub schema: Option<String>,
}

/// Where the effects go.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Broker {
    RabbitMq(RabbitMqConfig),
    Nats(NatsConfig),
    Kafka(KafkaConfig),
}

/// How they go.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Publish {
    /// Effects of one lease.
    pub batch: u32,
    /// Bytes of one lease, payloads and headers.
    pub max_bytes: u64,
    /// Bytes of all partitions together.
    pub max_held_bytes: u64,
    /// Publishes under way at once.
    pub in_flight: usize,
    /// How long a batch is ours.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// After so many refusals an effect is parked.
    pub max_attempts: u32,
}

impl Default for Publish {
    fn default() -> Self {
        let defaults = RelayDefaults::default();
        Self {
            batch: defaults.batch,
            max_bytes: defaults.max_bytes,
            max_held_bytes: defaults.max_held_bytes,
            in_flight: defaults.in_flight,
            lease: defaults.lease,
            max_attempts: defaults.max_attempts,
        }
    }
}

/// Where it can be looked at.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Http {
    pub listen: SocketAddr,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9187)),
        }
    }
}

fn default_relay() -> String {
    "default".to_owned()
}

fn default_connections() -> usize {
    4
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL can hold a password.
        f.debug_struct("Database")
            .field("connections", &self.connections)
            .field("ca", &self.ca)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file, if there is one, and puts the arguments before it.
    pub fn read(arguments: &Arguments) -> Result<Self> {
        let mut table = match &arguments.config {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .with_context(|| format!("{} cannot be read", path.display()))?;
                text.parse::<Table>()
                    .map_err(|error| not_toml(path, &text, &error))?
            }
            None => Table::new(),
        };
        put(&mut table, &["relay"], arguments.relay.clone())?;
        put(
            &mut table,
            &["database", "url"],
            arguments.database_url.clone(),
        )?;
        put(
            &mut table,
            &["broker", "kind"],
            arguments.broker.map(BrokerKind::name),
        )?;
        // Kafka has no URL but a list of brokers.
        let is_kafka = broker_kind(&table).is_some_and(|kind| kind == BrokerKind::Kafka.name());
        let place = if is_kafka { "brokers" } else { "url" };
        put(&mut table, &["broker", place], arguments.broker_url.clone())?;
        put(
            &mut table,
            &["http", "listen"],
            arguments.listen.map(|address| address.to_string()),
        )?;
        let read: Result<Self, toml::de::Error> = table.try_into();
        let config = read
            .map_err(|error| anyhow!(without_value(&error)))
            .context(ADVICE)?;
        config.check()?;
        Ok(config)
    }

    /// What the types do not say. The server would refuse it too, but only once everything has
    /// begun.
    fn check(&self) -> Result<()> {
        let Publish {
            batch,
            max_bytes,
            lease,
            ..
        } = self.publish;
        ensure!(
            (1..=10_000).contains(&batch),
            "publish.batch is {batch}, and must be 1 to 10000"
        );
        ensure!(
            (1..=1 << 30).contains(&max_bytes),
            "publish.max-bytes is {max_bytes}, and must be 1 to 1073741824"
        );
        ensure!(
            self.publish.max_held_bytes != 0,
            "publish.max-held-bytes is 0, and must be 1 or more"
        );
        let day = Duration::from_secs(24 * 3600);
        ensure!(
            (Duration::from_millis(1)..=day).contains(&lease),
            "publish.lease is {lease:?}, and must be 1 ms to 1 day"
        );
        let connections = self.database.connections;
        ensure!(
            connections >= 2,
            "database.connections is {connections}, and must be 2 or more: one waits for effects"
        );
        Ok(())
    }
}

/// The error's own text shows the line, and there may be a password in it.
fn not_toml(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let before = error
        .span()
        .and_then(|span| text.get(..span.start))
        .unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    anyhow!(
        "{} is not TOML: line {line}: {}",
        path.display(),
        error.message()
    )
}

fn broker_kind(table: &Table) -> Option<&str> {
    table.get("broker")?.get("kind")?.as_str()
}

const ADVICE: &str = "the settings are not complete or not right; needed are the URL of the database (--database-url), and kind and URL of the \
                      broker (--broker, --broker-url): see --help";

/// Sets one value, in tables that are made where they are missing.
fn put(table: &mut Table, path: &[&str], value: Option<impl Into<Value>>) -> Result<()> {
    let (Some(value), Some((last, parents))) = (value, path.split_last()) else {
        return Ok(());
    };
    let mut place = table;
    for name in parents {
        place = place
            .entry(*name)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .with_context(|| format!("`{name}` in the file is not a table"))?;
    }
    place.insert((*last).to_owned(), value.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;

    use super::*;

    fn read(file: &str, arguments: &[&str]) -> Result<Config> {
        let mut path = tempfile::NamedTempFile::new()?;
        path.write_all(file.as_bytes())?;
        let name = path.path().display().to_string();
        let line = ["idem-relay", "--config", &name]
            .into_iter()
            .chain(arguments.iter().copied());
        Config::read(&Arguments::try_parse_from(line)?)
    }

    const FILE: &str = r#"
        relay = "orders"
        [database]
        url = "host=db"
        [broker]
        kind = "rabbitmq"
        url = "amqp://one"
        [publish]
        lease = "1m"
    "#;

    #[test]
    fn what_is_not_given_has_a_default() {
        let config = read(FILE, &[]).unwrap();
        assert_eq!(config.relay, "orders");
        assert_eq!(config.publish.lease, Duration::from_secs(60));
        assert_eq!(config.publish.batch, 500);
        assert_eq!(config.database.connections, 4);
        assert!(config.http.listen.ip().is_loopback());
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let config = read(
            FILE,
            &["--relay", "other", "--database-url", "host=elsewhere"],
        )
        .unwrap();
        assert_eq!(
            (config.relay.as_str(), config.database.url.as_str()),
            ("other", "host=elsewhere")
        );
    }

    #[test]
    fn a_typo_is_an_error_and_says_what_would_be_right() {
        let error = format!(
            "{:#}",
            read(&FILE.replace("lease", "leese"), &[]).unwrap_err()
        );
        assert!(
            error.contains("leese") && error.contains("max-attempts"),
            "{error}"
        );
        let error = format!(
            "{:#}",
            read(
                &FILE.replace("url = \"amqp://one\"", "url = \"amqp://one\"\nurll = 1"),
                &[]
            )
            .unwrap_err()
        );
        assert!(error.contains("urll"), "{error}");
    }

    #[test]
    fn settings_of_the_package_are_settings() {
        let config = read(include_str!("../debian/idem-relay.toml"), &[]).unwrap();
        assert_eq!(
            (config.relay.as_str(), config.publish.batch),
            ("default", 500)
        );
        let all = include_str!("../debian/idem-relay.toml").replace("\n# ", "\n");
        let settings = all.split_once("\nrelay = ").unwrap().1;
        let settings = settings
            .lines()
            .filter(|line| line.contains(" = ") && !line.contains("...") || line.starts_with('['));
        let settings: Vec<_> = settings.collect();
        let config = read(&format!("relay = \"a\"\n{}", settings.join("\n")), &[]).unwrap();
        assert_eq!(
            config.database.schema.as_deref(),
            Some("api"),
            "the comments are settings, too"
        );
    }

    /// Goal: the guide has the defaults of the program.
    #[test]
    fn defaults_of_the_guide_are_those_of_the_program() {
        let guide = include_str!("../../docs/idem-relay.md");
        let config = read(
            "database.url = \"host=db\"\nbroker = { kind = \"nats\", url = \"nats://n\" }",
            &[],
        )
        .unwrap();
        let Publish {
            batch,
            max_bytes,
            max_held_bytes,
            in_flight,
            lease,
            max_attempts,
        } = config.publish;
        for (setting, default) in [
            ("relay", config.relay),
            (
                "database.connections",
                config.database.connections.to_string(),
            ),
            ("publish.batch", batch.to_string()),
            ("publish.max-bytes", max_bytes.to_string()),
            ("publish.max-held-bytes", max_held_bytes.to_string()),
            ("publish.in-flight", in_flight.to_string()),
            ("publish.lease", format!("{lease:?}")),
            ("publish.max-attempts", max_attempts.to_string()),
            ("http.listen", config.http.listen.to_string()),
        ] {
            let row = guide
                .lines()
                .find(|line| line.starts_with(&format!("| `{setting}` |")))
                .unwrap();
            let said = row
                .split('|')
                .nth(3)
                .unwrap()
                .trim()
                .trim_matches('`')
                .replace(',', "");
            assert_eq!(said, default, "{setting}");
        }
    }

    #[test]
    fn the_file_of_the_guide_is_one() {
        let guide = include_str!("../../docs/idem-relay.md");
        let file = guide
            .split("```toml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap();
        let config = read(file, &[]).unwrap();
        assert_eq!(
            (config.publish.batch, config.publish.lease),
            (500, Duration::from_secs(30))
        );
        assert!(matches!(config.broker, Broker::RabbitMq(_)), "{config:?}");
    }

    #[test]
    fn every_broker_has_its_place_for_the_url() {
        for (kind, url) in [
            ("rabbitmq", "amqp://b"),
            ("nats", "nats://b"),
            ("kafka", "b:9092"),
        ] {
            let line = [
                "idem-relay",
                "--database-url",
                "host=db",
                "--broker",
                kind,
                "--broker-url",
                url,
            ];
            Config::read(&Arguments::parse_from(line))
                .unwrap_or_else(|error| panic!("{kind}: {error:#}"));
        }
    }

    #[test]
    fn nothing_at_all_says_what_is_needed() {
        let error = format!(
            "{:#}",
            Config::read(&Arguments::parse_from(["idem-relay"])).unwrap_err()
        );
        assert!(error.contains("--database-url"), "{error}");
    }

    #[test]
    fn what_the_server_would_refuse_later_is_refused_now() {
        for (line, wrong, said) in [
            ("lease = \"1m\"", "lease = \"2 days\"", "publish.lease"),
            ("lease = \"1m\"", "batch = 0", "publish.batch"),
            ("lease = \"1m\"", "batch = 10001", "publish.batch"),
            ("lease = \"1m\"", "max-bytes = 0", "publish.max-bytes"),
            (
                "lease = \"1m\"",
                "max-bytes = 1073741825",
                "publish.max-bytes",
            ),
            (
                "lease = \"1m\"",
                "max-held-bytes = 0",
                "publish.max-held-bytes",
            ),
            (
                "url = \"host=db\"",
                "url = \"host=db\"\nconnections = 1",
                "database.connections",
            ),
        ] {
            let error = format!("{:#}", read(&FILE.replace(line, wrong), &[]).unwrap_err());
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_toml_is_told_by_its_line_without_what_it_says() {
        let file = "relay = \"orders\"\n[database]\nurl = \"postgres://relay:secret@db\n";
        let error = format!("{:#}", read(file, &[]).unwrap_err());
        assert!(
            error.contains("line 3") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = read(FILE, &["--database-url", "postgres://relay:secret@db/shop"]).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_not_shown() {
        for (file, place) in [
            ("database = \"postgres://u:s3cret@db\"", "in `database`"),
            (
                "database = \"postgres://u:s3cret@db, expected s3cret\"",
                "expected struct Database",
            ),
            (
                "[database]\nurl = [\"postgres://u:s3cret@db\"]",
                "in `database.url`",
            ),
            (
                "[database]\nurl = \"host=db\"\nconnections = \"s3cret\"",
                "in `database.connections`",
            ),
            (
                "[database]\nurl = \"host=db\"\n[broker]\nkind = \"s3cret\"",
                "unknown variant, expected one of",
            ),
            (
                "[database]\nurl = \"host=db\"\n[broker]\nkind = \"nats\"\nurl = { a = \"s3cret\" }",
                "invalid type",
            ),
            (
                "[database]\nurl = \"host=db\"\n[broker]\nkind = \"kafka\"\nbrokers = \"b\"\nproperties = \"s3cret\"",
                "invalid type",
            ),
            ("[publish]\nlease = \"s3cret\"", "in `publish.lease`"),
            ("[http]\nlisten = \"s3cret\"", "in `http.listen`"),
        ] {
            let error = read(file, &[]).unwrap_err();
            let shown = format!("{error:#} {error:?}");
            assert!(!shown.contains("s3cret"), "{file}: {shown}");
            assert!(shown.contains(place), "{file}: {shown}");
        }
    }
}
