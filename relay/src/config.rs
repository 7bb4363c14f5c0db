//! The settings of the program: the file, overridden by the command line and the environment.

use std::{
    fmt::Display,
    fs,
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Error, Result, anyhow, ensure};
use idem_client::redacted::without_value;
use idem_kafka::KafkaConfig;
use idem_nats::NatsConfig;
use idem_rabbitmq::RabbitMqConfig;
use idem_runtime::relay::defaults;
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::{Table, Value};

use crate::arguments::{Arguments, BrokerKind};

/// The settings that only the file can contain.
pub const IN_THE_FILE: [&str; 19] = [
    "database.connections",
    "database.ca",
    "database.schema",
    "broker.ca",
    "broker.client-certificate",
    "broker.client-key",
    "broker.exchange",
    "broker.nkey-seed-file",
    "broker.credentials",
    "broker.max-unconfirmed",
    "broker.timeout-s",
    "broker.system-topics",
    "broker.properties",
    "publish.batch",
    "publish.max-bytes",
    "publish.max-held-bytes",
    "publish.in-flight",
    "publish.lease",
    "publish.max-attempts",
];

/// All settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The name of the relay.
    #[serde(default = "default_relay")]
    pub relay: String,
    pub database: Database,
    pub broker: Broker,
    #[serde(default)]
    pub publish: Publish,
    #[serde(default)]
    pub http: Http,
}

/// The settings of the database.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Database {
    /// The connection string: a URL or key=value pairs, as for psql.
    pub url: String,
    /// The largest number of connections.
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// A PEM file of the certificate authorities to trust instead of the system's authorities.
    pub ca: Option<PathBuf>,
    /// The schema of the extension, if the `search_path` of the role does not contain it.
    pub schema: Option<String>,
}

/// The settings of the broker.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Broker {
    RabbitMq(RabbitMqConfig),
    Nats(NatsConfig),
    Kafka(KafkaConfig),
}

/// The settings of publishing.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Publish {
    /// The largest number of effects in one lease.
    pub batch: u32,
    /// The largest size, in bytes, of the payloads and headers in one lease.
    pub max_bytes: u64,
    /// The largest size, in bytes, of the effects of all partitions together.
    pub max_held_bytes: u64,
    /// The largest number of effects that are published at the same time.
    pub in_flight: usize,
    /// The duration of a lease on a batch.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// The number of rejected attempts after which an effect is parked.
    pub max_attempts: u32,
}

impl Default for Publish {
    fn default() -> Self {
        Self {
            batch: defaults::BATCH,
            max_bytes: defaults::MAX_BYTES,
            max_held_bytes: defaults::MAX_HELD_BYTES,
            in_flight: defaults::IN_FLIGHT,
            lease: defaults::LEASE,
            max_attempts: defaults::MAX_ATTEMPTS,
        }
    }
}

/// The settings of the HTTP server.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Http {
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9187)),
        }
    }
}

/// Reads an address. A name such as `localhost` can have several addresses, so it would not tell
/// where the server is.
fn address<'de, D: Deserializer<'de>>(setting: D) -> Result<SocketAddr, D::Error> {
    let address = String::deserialize(setting)?.parse();
    address.map_err(|_| {
        D::Error::custom(
            "write an IP address and a port, such as 127.0.0.1:9187 (for localhost) or [::]:9187",
        )
    })
}

fn default_relay() -> String {
    defaults::NAME.to_owned()
}

fn default_connections() -> usize {
    4
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL can contain a password, so it is omitted.
        f.debug_struct("Database")
            .field("connections", &self.connections)
            .field("ca", &self.ca)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file, if one is given, and overrides its settings with the arguments. Fails if a
    /// setting is missing, unknown or not valid. If a setting has the wrong type, the error does
    /// not contain its value.
    pub fn read(arguments: &Arguments) -> Result<Self> {
        let mut table = match &arguments.config {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
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
        // For Kafka the value is a list of brokers and not a URL, so the setting has another name.
        let is_kafka = broker_kind(&table).is_some_and(|kind| kind == BrokerKind::Kafka.name());
        let place = if is_kafka { "brokers" } else { "url" };
        put(&mut table, &["broker", place], arguments.broker_url.clone())?;
        put(&mut table, &["http", "listen"], arguments.listen.clone())?;
        let read: Result<Self, toml::de::Error> = table.try_into();
        let config = read
            .map_err(|error| anyhow!(without_value(&error)))
            .context(ADVICE)?;
        config.check()?;
        Ok(config)
    }

    /// Checks the limits that the types do not express. Without this check, such a value would
    /// cause an error only after the start.
    fn check(&self) -> Result<()> {
        let publish = &self.publish;
        within("publish.batch", publish.batch, 1..=10_000)?;
        within("publish.max-bytes", publish.max_bytes, 1..=1 << 30)?;
        within(
            "publish.max-held-bytes",
            publish.max_held_bytes,
            1..=1 << 40,
        )?;
        within("publish.in-flight", publish.in_flight, 1..=100_000)?;
        within("publish.max-attempts", publish.max_attempts, 1..=1_000_000)?;
        let day = Duration::from_secs(24 * 3600);
        ensure!(
            (Duration::from_millis(1)..=day).contains(&publish.lease),
            "publish.lease is {:?}, but must be between 1 ms and 1 day",
            publish.lease
        );
        // One connection is used to wait for effects.
        within("database.connections", self.database.connections, 2..=1000)
    }
}

/// Checks that the number of a setting is in its range.
fn within<T: PartialOrd + Display>(name: &str, number: T, range: RangeInclusive<T>) -> Result<()> {
    ensure!(
        range.contains(&number),
        "{name} is {number}, but must be between {} and {}",
        range.start(),
        range.end()
    );
    Ok(())
}

/// Returns the error for a file that is not TOML. It contains only the message and the line number
/// of the TOML error, because the full text shows the line, which can contain a password.
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

const ADVICE: &str = "the settings are incomplete or not valid; required are the URL of the \
                      database (--database-url) and the kind and the URL of the broker (--broker, \
                      --broker-url): see --help";

/// Sets one value, and creates the missing tables on its path.
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
    fn missing_settings_have_defaults() {
        let config = read(FILE, &[]).unwrap();
        assert_eq!(config.relay, "orders");
        assert_eq!(config.publish.lease, Duration::from_secs(60));
        assert_eq!(config.publish.batch, 500);
        assert_eq!(config.database.connections, 4);
        assert!(config.http.listen.ip().is_loopback());
    }

    #[test]
    fn command_line_overrides_the_file() {
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
    fn unknown_setting_is_an_error_that_lists_the_valid_names() {
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
    fn settings_of_the_package_are_valid() {
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
            "the settings in comments are valid"
        );
    }

    /// Goal: the guide states the defaults of the program.
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

    /// Goal: the guide has the settings that only the file can contain, and no others.
    #[test]
    fn guide_has_all_settings_of_the_file() {
        let guide = include_str!("../../docs/idem-relay.md");
        let rows = guide.lines().filter(|line| {
            line.starts_with("| `") && line.split('|').nth(2).is_some_and(|cell| cell == " ")
        });
        let names = rows.flat_map(|row| {
            let cell = row.split('|').nth(1).unwrap_or_default();
            cell.split('`').skip(1).step_by(2)
        });
        assert_eq!(names.collect::<Vec<_>>(), IN_THE_FILE);
    }

    #[test]
    fn listen_is_an_address_and_a_port() {
        let listen = |address| read(FILE, &["--listen", address]);
        let any = listen("[::]:9187").unwrap().http.listen;
        assert!(any.ip().is_unspecified());
        for wrong in ["9187", "localhost:9187", ":9187"] {
            let error = format!("{:#}", listen(wrong).unwrap_err());
            assert!(error.contains("such as 127.0.0.1:9187"), "{wrong}: {error}");
        }
    }

    #[test]
    fn settings_file_of_the_guide_is_valid() {
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
    fn broker_url_is_accepted_for_every_kind() {
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
    fn missing_settings_error_names_the_required_ones() {
        let error = format!(
            "{:#}",
            Config::read(&Arguments::parse_from(["idem-relay"])).unwrap_err()
        );
        assert!(error.contains("--database-url"), "{error}");
    }

    #[test]
    fn values_out_of_range_are_errors() {
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
                "lease = \"1m\"",
                "max-held-bytes = 9000000000000",
                "publish.max-held-bytes",
            ),
            ("lease = \"1m\"", "in-flight = 0", "publish.in-flight"),
            ("lease = \"1m\"", "in-flight = 100001", "publish.in-flight"),
            ("lease = \"1m\"", "max-attempts = 0", "publish.max-attempts"),
            (
                "url = \"host=db\"",
                "url = \"host=db\"\nconnections = 1",
                "database.connections",
            ),
            (
                "url = \"host=db\"",
                "url = \"host=db\"\nconnections = 1000000000",
                "database.connections",
            ),
        ] {
            let error = format!("{:#}", read(&FILE.replace(line, wrong), &[]).unwrap_err());
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }

    #[test]
    fn toml_error_names_the_line_and_not_its_text() {
        let file = "relay = \"orders\"\n[database]\nurl = \"postgres://relay:secret@db\n";
        let error = format!("{:#}", read(file, &[]).unwrap_err());
        assert!(
            error.contains("line 3") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn password_is_not_printed() {
        let config = read(FILE, &["--database-url", "postgres://relay:secret@db/shop"]).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn value_of_the_wrong_type_is_not_in_the_error() {
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
                "[database]\nurl = \"host=db\"\n\
                 [broker]\nkind = \"nats\"\nurl = { a = \"s3cret\" }",
                "invalid type",
            ),
            (
                "[database]\nurl = \"host=db\"\n\
                 [broker]\nkind = \"kafka\"\nbrokers = \"b\"\nproperties = \"s3cret\"",
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
