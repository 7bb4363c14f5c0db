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
    let mut config = Config::from_str(&database.url).context("the database URL cannot be read")?;
    if config.get_application_name().is_none() {
        config.application_name("idem-relay");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
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

/// So long may a server take that is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
