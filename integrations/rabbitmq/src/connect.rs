//! Opens a connection within a limited time.

use std::time::Duration;

use idem_runtime::{
    Error,
    transport::{TransportError, check_login, check_setting, tls::Files},
};
use lapin::{
    Connection, ConnectionProperties,
    runtime::default_runtime,
    tcp::{AMQPUriTcpExt, RustlsConnector},
    uri::{AMQPScheme, AMQPUri, AMQPUserInfo},
};
use tokio::time::timeout;
use url::{Host, Url};

use super::RabbitMqConfig;

/// The longest time to wait until a server opens a connection or a channel. The server writes
/// nothing to disk for this, so it needs little time. A server that is starting can accept a
/// connection and then never reply to it, and another attempt then succeeds.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest number of channels of a connection, without one for a probe. A server allows 2,047,
/// unless it is configured otherwise.
const MAX_CHANNELS: u16 = 2046;

/// Connects. RabbitMQ shows the name of the connection, which contains `role`, in its lists.
pub(super) async fn connect(
    config: &RabbitMqConfig,
    role: &str,
) -> Result<Connection, TransportError> {
    let properties =
        ConnectionProperties::default().with_connection_name(format!("idem {role}").into());
    let (uri, tls) = config.server()?;
    let connecting = Connection::connector(
        uri,
        default_runtime()?,
        async move |uri, runtime| {
            let host = uri.authority.host.clone();
            // lapin would log the whole URL during its TLS handshake. So this opens the stream
            // without a login, and performs the handshake itself.
            let place = without_login(uri);
            let stream = place.connect_async(&runtime).await?;
            match &tls {
                Some(tls) => Ok(stream.into_rustls(tls, &host).await?),
                None => Ok(stream),
            }
        },
        properties,
    );
    Ok(timeout(CONNECT_TIMEOUT.min(config.timeout()), connecting).await??)
}

fn without_login(mut uri: AMQPUri) -> AMQPUri {
    uri.scheme = AMQPScheme::AMQP;
    uri.authority.userinfo = AMQPUserInfo {
        username: String::new(),
        password: String::new(),
    };
    uri
}

impl RabbitMqConfig {
    /// Checks the settings and reads every file that they name.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL or a file cannot be used. The error names the file and
    /// contains no secret.
    pub fn check(&self) -> Result<(), Error> {
        self.server().map(drop)
    }

    /// Returns the address of the server, and its TLS connector if the URL begins with `amqps://`.
    fn server(&self) -> Result<(AMQPUri, Option<RustlsConnector>), Error> {
        check_setting("timeout_s", self.timeout_s, 1..=3600)?;
        check_setting("max_unconfirmed", self.max_unconfirmed, 1..=MAX_CHANNELS)?;
        check_login(&self.url).map_err(|reason| {
            Error::Invalid(format!("the URL of RabbitMQ cannot be used: {reason}"))
        })?;
        // The error of lapin can contain the URL with its password, so it is not used.
        let mut uri: AMQPUri = self.url.parse().map_err(|_| {
            Error::Invalid("the URL of RabbitMQ is not an amqp:// or amqps:// URL".into())
        })?;
        // lapin replaces an IPv6 address and a missing host with `localhost`.
        match Url::parse(&self.url).ok().as_ref().and_then(Url::host) {
            Some(Host::Ipv6(address)) => uri.authority.host = address.to_string(),
            Some(_) => {}
            None => return Err(Error::Invalid("the URL of RabbitMQ has no host".into())),
        }
        let files = Files {
            ca: self.ca.as_deref(),
            certificate: self.client_certificate.as_deref(),
            key: self.client_key.as_deref(),
        };
        match uri.scheme {
            AMQPScheme::AMQPS => Ok((uri, Some(files.verify_full()?.into()))),
            AMQPScheme::AMQP if files.is_any() => Err(Error::Invalid(
                "the RabbitMQ settings name certificate files, but the URL is not amqps://".into(),
            )),
            AMQPScheme::AMQP => Ok((uri, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(url: &str) -> Result<String, Error> {
        let (uri, _) = RabbitMqConfig::new(url).server()?;
        Ok(uri.authority.host)
    }

    #[test]
    fn every_kind_of_host_is_read_from_the_url() {
        for (url, expected) in [
            ("amqp://u:p@[2001:db8::1]:5672/v", "2001:db8::1"),
            ("amqps://[::1]/%2f", "::1"),
            (" amqp://u:p@\n[::1]:5671 ", "::1"),
            ("amqp://192.0.2.1", "192.0.2.1"),
            ("amqp://rabbit.example.com/v", "rabbit.example.com"),
        ] {
            assert_eq!(host(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn url_without_a_host_is_an_error() {
        for url in ["amqp:///v", "amqp://", "amqps:/v", "amqp://?heartbeat=1"] {
            let error = host(url).expect_err(url).to_string();
            assert!(error.contains("has no host"), "{url}: {error}");
        }
    }
}
