//! A connection, or the reason why there is none, in bounded time.

use std::{net::Ipv6Addr, time::Duration};

use lapin::{
    Connection, ConnectionProperties,
    runtime::default_runtime,
    tcp::{AMQPUriTcpExt, RustlsConnector},
    uri::{AMQPScheme, AMQPUri, AMQPUserInfo},
};
use tokio::time::timeout;

use super::RabbitMqConfig;
use crate::{Error, TransportError, tls::Files};

/// How long a server that is there takes at most for what needs no disk: connections and channels.
/// One that is about to come up may take a connection and never say a word; trying again is what
/// helps.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Connects under a name that people find in RabbitMQ's own lists.
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
            // The stream alone: the handshake of TLS is ours, and the library logs the whole URL.
            let place = without_login(uri);
            let stream = place.connect_async(&runtime).await?;
            match &tls {
                Some(tls) => Ok(stream.into_rustls(tls, &host).await?),
                None => Ok(stream),
            }
        },
        properties,
    );
    Ok(timeout(PATIENCE.min(config.timeout()), connecting).await??)
}

fn without_login(mut uri: AMQPUri) -> AMQPUri {
    uri.scheme = AMQPScheme::AMQP;
    uri.authority.userinfo = AMQPUserInfo {
        username: String::new(),
        password: String::new(),
    };
    uri
}

/// The host in a URL that the library accepts.
enum Host {
    /// A name or an IPv4 address, which the library reads correctly.
    Name,
    Address(Ipv6Addr),
}

/// The library takes `localhost` for an IPv6 address and for a missing host.
fn host(url: &str) -> Option<Host> {
    // As the library does: it removes these, and what surrounds the URL.
    let url: String = url
        .chars()
        .filter(|c| !matches!(c, '\t' | '\n' | '\r'))
        .collect();
    let (_, rest) = url.trim_matches(|c| c <= ' ').split_once(':')?;
    let authority = rest.strip_prefix("//")?.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next()?.parse().ok().map(Host::Address),
        None => (!host.is_empty() && !host.starts_with(':')).then_some(Host::Name),
    }
}

impl RabbitMqConfig {
    /// Reads the URL and every file that is named. [`Error::Invalid`] when one of them cannot be
    /// used. The error names the file and repeats no secret.
    pub fn check(&self) -> Result<(), Error> {
        self.server().map(drop)
    }

    /// Where the server is, and the TLS to it if its URL has TLS.
    fn server(&self) -> Result<(AMQPUri, Option<RustlsConnector>), Error> {
        // The library's own error can repeat the URL, with the password in it.
        let mut uri: AMQPUri = self.url.parse().map_err(|_| {
            Error::Invalid("the URL of RabbitMQ is not an amqp:// or amqps:// URL".into())
        })?;
        match host(&self.url) {
            Some(Host::Address(address)) => uri.authority.host = address.to_string(),
            Some(Host::Name) => {}
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
                "the RabbitMQ settings name certificates, and the URL is not amqps://".into(),
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
    fn every_kind_of_host_is_the_one_of_the_url() {
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
