//! Connection settings: opens a connection with them, and writes them as a connection string.

use std::fmt::Write;

use tokio_postgres::{Client, Config, NoTls, config::Host};

use super::TestError;

/// Opens a connection without TLS. The connection ends when the client is dropped.
pub(super) async fn open(config: &Config) -> Result<Client, TestError> {
    let (client, connection) = config.connect(NoTls).await.map_err(TestError::Connect)?;
    // No code awaits this task: statements on the connection return the error of the connection.
    tokio::spawn(connection);
    Ok(client)
}

/// Copies the settings of a session: user, password, database, options and application name. The
/// copy has no host.
pub(super) fn session_of(config: &Config) -> Config {
    let mut session = Config::new();
    if let Some(user) = config.get_user() {
        session.user(user);
    }
    if let Some(password) = config.get_password() {
        session.password(password);
    }
    if let Some(database) = config.get_dbname() {
        session.dbname(database);
    }
    if let Some(options) = config.get_options() {
        session.options(options);
    }
    if let Some(name) = config.get_application_name() {
        session.application_name(name);
    }
    session
}

/// Returns the settings as a connection string of keywords and values, which libpq and
/// `tokio-postgres` accept. It contains the password.
pub(super) fn to_string(config: &Config) -> String {
    let hosts: Vec<_> = config.get_hosts().iter().map(host).collect();
    let addresses: Vec<_> = config
        .get_hostaddrs()
        .iter()
        .map(ToString::to_string)
        .collect();
    let ports: Vec<_> = config.get_ports().iter().map(ToString::to_string).collect();
    let password = config.get_password().map(String::from_utf8_lossy);
    let settings = [
        ("host", list(&hosts)),
        ("hostaddr", list(&addresses)),
        ("port", list(&ports)),
        ("user", config.get_user().map(str::to_owned)),
        ("password", password.map(Into::into)),
        ("dbname", config.get_dbname().map(str::to_owned)),
        ("options", config.get_options().map(str::to_owned)),
        (
            "application_name",
            config.get_application_name().map(str::to_owned),
        ),
        ("sslmode", Some("disable".to_owned())),
    ];
    let mut string = String::new();
    for (keyword, value) in settings {
        let Some(value) = value else { continue };
        let separator = if string.is_empty() { "" } else { " " };
        let value = value.replace('\\', r"\\").replace('\'', r"\'");
        // Writing to a `String` does not fail.
        let _ = write!(string, "{separator}{keyword}='{value}'");
    }
    string
}

fn host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(directory) => directory.to_string_lossy().into_owned(),
    }
}

fn list(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_string_has_all_settings() {
        let mut config = Config::new();
        config
            .host("a.example")
            .port(5433)
            .user("it's")
            .password("a\\b c");
        config.dbname("app").options("-c work_mem=1MB");
        let string = to_string(&config);
        let read: Config = string.parse().unwrap();
        config.ssl_mode(tokio_postgres::config::SslMode::Disable);
        assert_eq!(read, config, "{string}");
    }

    #[test]
    fn unix_socket_is_a_host() {
        let config: Config = "host=/run/postgresql user=postgres".parse().unwrap();
        let read: Config = to_string(&config).parse().unwrap();
        assert_eq!(read.get_hosts(), config.get_hosts());
    }

    #[test]
    fn session_has_no_host() {
        let config: Config = "host=a port=1 user=u password=p dbname=d".parse().unwrap();
        let session = session_of(&config);
        assert_eq!(session.get_hosts(), []);
        assert_eq!(session.get_ports(), [0_u16; 0]);
        assert_eq!(
            to_string(&session),
            "user='u' password='p' dbname='d' sslmode='disable'"
        );
    }
}
