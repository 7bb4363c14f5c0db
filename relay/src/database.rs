//! The pool, with TLS where the server has it.

use std::{fs::File, io::BufReader, path::Path, str::FromStr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::Database;

/// A pool of connections; none is made yet.
pub fn pool(database: &Database) -> Result<Pool> {
    let config = settings(&database.url)?;
    let manager = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(config, tls(database.ca.as_deref())?, manager);
    Pool::builder(manager)
        .max_size(database.connections)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECT_TIMEOUT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .build()
        .context("the pool cannot be made")
}

/// What the URL says, and what it has to say for a process that is to notice when the server is gone.
fn settings(url: &str) -> Result<Config> {
    let mut config = Config::from_str(url).context("the database URL cannot be read")?;
    if config.get_application_name().is_none() {
        config.application_name("idem-relay");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // A server whose machine is gone says nothing: without these, /readyz would call it there for a quarter of an hour or more.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(SILENCE);
    }
    Ok(config)
}

/// So long may a server take that is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// So long may the network take to bring an answer of the server's kernel.
const SILENCE: Duration = Duration::from_secs(30);

/// The certificates that are trusted: those of the file, or those of the system.
fn tls(ca: Option<&Path>) -> Result<MakeRustlsConnect> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        let file = File::open(path).with_context(|| format!("the certificates in {} cannot be read", path.display()))?;
        let (added, _) = roots.add_parsable_certificates(pem(file, path)?);
        ensure!(added > 0, "there is no certificate in {}", path.display());
    } else {
        // A system without certificates can still be meant: not every server has TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn pem(file: File, path: &Path) -> Result<Vec<rustls::pki_types::CertificateDer<'static>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    CertificateDer::pem_reader_iter(BufReader::new(file))
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} is not a file of PEM certificates", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_gone_is_noticed_unless_the_url_says_otherwise() {
        let config = settings("host=db").unwrap();
        assert_eq!(config.get_tcp_user_timeout(), Some(&SILENCE));
        assert_eq!(config.get_keepalives_idle(), SILENCE);
        let config = settings("host=db tcp_user_timeout=7 keepalives_idle=9").unwrap();
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(7)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(9));
    }
}
