//! Connects to the first host that accepts.

use deadpool_postgres::Connect;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config, Connection, Error, NoTls, Socket,
    tls::{MakeTlsConnect, TlsStream},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The configurations to try, in their order.
pub(super) struct Hosts {
    configs: Vec<Config>,
    /// `None` when no configuration uses TLS.
    tls: Option<MakeRustlsConnect>,
}

impl Hosts {
    pub(super) fn new(configs: Vec<Config>, tls: Option<MakeRustlsConnect>) -> Self {
        Self { configs, tls }
    }

    async fn connect_to(&self, config: &Config) -> Result<(Client, JoinHandle<()>), Error> {
        match &self.tls {
            Some(tls) => connect(config, tls.clone()).await,
            None => connect(config, NoTls).await,
        }
    }
}

async fn connect<T>(config: &Config, tls: T) -> Result<(Client, JoinHandle<()>), Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    Ok((client, tokio::spawn(run(connection))))
}

async fn run<S: TlsStream + Unpin>(connection: Connection<Socket, S>) {
    if let Err(error) = connection.await {
        tracing::warn!(%error, "a connection to the database was lost");
    }
}

impl Connect for Hosts {
    fn connect(&self, first: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let first = first.clone();
        async move {
            let mut configs = self.configs.iter();
            let mut result = self.connect_to(configs.next().unwrap_or(&first)).await;
            for config in configs {
                if result.is_ok() {
                    break;
                }
                result = self.connect_to(config).await;
            }
            result
        }
        .boxed()
    }
}
