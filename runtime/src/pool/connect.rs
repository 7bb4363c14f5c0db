//! Connects to the first host that accepts the connection.

use std::{future::poll_fn, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use deadpool_postgres::Connect;
use futures_util::{FutureExt, future::BoxFuture, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, join, sink},
    net::lookup_host,
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, NoTls, Socket,
    config::{Host, LoadBalanceHosts},
    tls::{MakeTlsConnect, TlsStream},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::io::StreamReader;
use uuid::Uuid;

use super::pooler;

/// The longest time in which a server must accept a connection, unless the connection string sets
/// another limit.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The configurations to try, each with one host.
pub(super) struct Hosts {
    configs: Vec<Config>,
    /// `None` if no configuration uses TLS.
    tls: Option<Arc<MakeRustlsConnect>>,
}

impl Hosts {
    pub(super) fn new(configs: Vec<Config>, tls: Option<Arc<MakeRustlsConnect>>) -> Self {
        Self { configs, tls }
    }

    async fn connect_to(&self, config: &Config, limit: Duration) -> Result<Connected, Error> {
        let connecting = async {
            match &self.tls {
                Some(tls) => connect(config, (**tls).clone()).await,
                None => connect(config, NoTls).await,
            }
        };
        match timeout(limit, connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                let text = format!("the server did not accept the connection within {limit:?}");
                fail(io::ErrorKind::TimedOut, text).await
            }
        }
    }

    /// Connects to the first address of a host that accepts. Each address has the full time limit.
    async fn connect_to_host(&self, config: &Config) -> Result<Connected, Error> {
        let limit = config
            .get_connect_timeout()
            .copied()
            .unwrap_or(CONNECT_TIMEOUT);
        let mut addresses = addresses(config, limit).await.into_iter();
        let mut result = self
            .connect_to(&addresses.next().unwrap_or_else(|| config.clone()), limit)
            .await;
        for address in addresses {
            if result.is_ok() {
                break;
            }
            result = self.connect_to(&address, limit).await;
        }
        result
    }
}

type Connected = (Client, JoinHandle<()>);

/// Returns one configuration for each address of the host. Returns the given configuration if the
/// host is an address or a socket, or cannot be looked up; connecting with it then fails with the
/// reason.
async fn addresses(config: &Config, limit: Duration) -> Vec<Config> {
    let ([Host::Tcp(name)], [], [port]) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    ) else {
        return vec![config.clone()];
    };
    let Ok(Ok(found)) = timeout(limit, lookup_host((name.as_str(), *port))).await else {
        return vec![config.clone()];
    };
    let with = |address: SocketAddr| {
        let mut config = config.clone();
        config.hostaddr(address.ip());
        config
    };
    in_order(found.map(with).collect())
}

/// Shuffles the configurations if `load_balance_hosts` is random.
fn in_order(mut configs: Vec<Config>) -> Vec<Config> {
    if configs
        .iter()
        .any(|config| config.get_load_balance_hosts() == LoadBalanceHosts::Random)
    {
        configs.sort_by_cached_key(|_| Uuid::new_v4());
    }
    configs
}

async fn connect<T>(config: &Config, tls: T) -> Result<Connected, Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    let options = config.get_options().unwrap_or_default();
    match pooler::mixes_up(options, |name| connection.parameter(name)) {
        Some(text) => fail(io::ErrorKind::Unsupported, text).await,
        None => Ok(spawned(client, connection)),
    }
}

/// Serves a connection in a task. A connection that is polled as a future logs each notice of the
/// server at INFO.
fn spawned<S, T>(client: Client, mut connection: Connection<S, T>) -> Connected
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsStream + Unpin + Send + 'static,
{
    let running = async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) => tracing::debug!(%notice, "the server"),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection to the database was lost");
                    return;
                }
            }
        }
    };
    (client, tokio::spawn(running))
}

/// Returns this error as an error of `tokio-postgres`, which converts an I/O error into its own
/// error only if a stream returns it. So it connects over a stream whose read fails with the error.
async fn fail(kind: io::ErrorKind, text: String) -> Result<Connected, Error> {
    let error = Err::<Bytes, _>(io::Error::new(kind, text));
    let failing = join(StreamReader::new(stream::iter([error])), sink());
    let mut config = Config::new();
    let (client, connection) = config.user("none").connect_raw(failing, NoTls).await?;
    Ok(spawned(client, connection))
}

impl Connect for Hosts {
    fn connect(&self, first: &Config) -> BoxFuture<'_, Result<Connected, Error>> {
        let first = first.clone();
        async move {
            let mut configs = in_order(self.configs.clone()).into_iter();
            let mut result = self.connect_to_host(&configs.next().unwrap_or(first)).await;
            for config in configs {
                if result.is_ok() {
                    break;
                }
                result = self.connect_to_host(&config).await;
            }
            result
        }
        .boxed()
    }
}
