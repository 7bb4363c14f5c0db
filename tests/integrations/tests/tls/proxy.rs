//! A proxy with TLS in front of the mock cluster of librdkafka, which does not support TLS.
//!
//! The mock listens on 127.0.0.1 and sends this address to its clients. The proxy listens on the
//! same port of 127.0.0.2, and replaces the address in the replies of the mock. This works because
//! both addresses have the same length.

use std::sync::Arc;

use idem_brokers::Certified;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

const MOCK: &[u8] = b"127.0.0.1";
const PROXY: &[u8] = b"127.0.0.2";

/// Starts a proxy that decrypts the connections to the mock. Returns the address of the proxy.
pub async fn start(mock: &str, server: &Certified) -> String {
    let port: u16 = mock.rsplit(':').next().unwrap().parse().unwrap();
    let chain = CertificateDer::pem_file_iter(&server.certificate).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(&server.key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(acceptor.clone(), stream, port));
        }
    });
    format!("127.0.0.2:{port}")
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, port: u16) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = split(acceptor.accept(stream).await?);
    let (mut from_mock, mut to_mock) = TcpStream::connect(("127.0.0.1", port)).await?.into_split();
    let requests = tokio::spawn(async move { copy(&mut from_client, &mut to_mock).await });
    loop {
        let Ok(length) = from_mock.read_u32().await else {
            requests.abort();
            return Ok(());
        };
        let mut frame = vec![0; usize::try_from(length).unwrap_or_default()];
        from_mock.read_exact(&mut frame).await?;
        let places: Vec<_> = (0..frame.len())
            .filter(|at| frame[*at..].starts_with(MOCK))
            .collect();
        for at in places {
            frame[at..at + PROXY.len()].copy_from_slice(PROXY);
        }
        to_client.write_u32(length).await?;
        to_client.write_all(&frame).await?;
        to_client.flush().await?;
    }
}
