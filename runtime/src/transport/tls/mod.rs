//! Configures TLS for the connections that use rustls: PostgreSQL, RabbitMQ and NATS.
//!
//! Each configuration names its provider of cryptography. Otherwise rustls panics if two crates of
//! a program enable different providers.

mod files;
mod verify_ca;

use std::{path::Path, sync::Arc};

use rustls::{ClientConfig, RootCertStore, crypto::CryptoProvider};

use crate::Error;
use verify_ca::SignedByRoots;

/// The PEM files of a connection: the certificates that it trusts, and the certificate and key that
/// identify the client.
#[derive(Clone, Copy, Default)]
pub struct Files<'f> {
    /// The certificates to trust. If this is `None`, the certificates of the system are trusted.
    pub ca: Option<&'f Path>,
    /// The client's own certificate, with intermediates.
    pub certificate: Option<&'f Path>,
    /// The private key of `certificate`.
    pub key: Option<&'f Path>,
}

impl Files<'_> {
    /// Returns whether a file is set, which contradicts a connection without TLS.
    pub fn is_any(&self) -> bool {
        self.ca.or(self.certificate).or(self.key).is_some()
    }

    /// Returns a configuration that verifies the chain, the validity and the host name of the
    /// server's certificate.
    pub fn verify_full(&self) -> Result<ClientConfig, Error> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("TLS cannot be set up", &error))?
            .with_root_certificates(self.roots()?);
        self.identify(builder)
    }

    /// Returns a configuration that verifies the chain and the validity of the server's
    /// certificate, but not its host name.
    pub fn verify_ca(&self) -> Result<ClientConfig, Error> {
        let provider = provider();
        let verifier = SignedByRoots::new(self.roots()?, &provider);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("TLS cannot be set up", &error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        self.identify(builder)
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        match self.ca {
            Some(file) => files::roots(file),
            None => Ok(system_roots()),
        }
    }

    fn identify(
        &self,
        builder: rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>,
    ) -> Result<ClientConfig, Error> {
        match (self.certificate, self.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let chain = files::certificates(certificate)?;
                builder
                    .with_client_auth_cert(chain, files::key(key)?)
                    .map_err(|error| {
                        let files = format!("{} and {}", certificate.display(), key.display());
                        invalid(
                            &format!("the client certificate and its key cannot be used ({files})"),
                            &error,
                        )
                    })
            }
            (Some(_), None) => Err(Error::Invalid(
                "a client certificate is set without its key".into(),
            )),
            (None, Some(_)) => Err(Error::Invalid(
                "a key is set without its client certificate".into(),
            )),
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the certificates that the system trusts. If the system has no certificate, every
/// handshake fails with an error that names the reason.
fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a root certificate of the system cannot be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!(
            "the system has no root certificates: \
             no server can be verified without a file of authorities"
        );
    }
    roots
}

fn invalid(what: &str, error: &dyn std::error::Error) -> Error {
    Error::Invalid(format!("{what}: {error}"))
}
