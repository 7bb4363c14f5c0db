//! The proxy between a worker and a server. The proxy counts requests, and stops forwarding at the
//! point where the worker is killed.

use std::sync::Arc;

use idem_testkit::proxy::{Listener, Target};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    fate::{Fate, Moment},
    parser::{Parser, Protocol},
};

/// Starts a proxy, which forwards data to a server until the worker is killed. `name` is the first
/// word in the names of its requests.
pub async fn open(
    name: &'static str,
    server: Target,
    protocol: Protocol,
    fate: Arc<Fate>,
) -> std::io::Result<Listener> {
    let mut number = 0;
    Listener::start(move |client| {
        number += 1;
        let call = Call {
            name: format!("{name} {number}"),
            parser: Parser::new(protocol),
            fate: Arc::clone(&fate),
        };
        call.pass(client, server.clone())
    })
    .await
}

/// One connection through a proxy.
struct Call {
    name: String,
    parser: Parser,
    fate: Arc<Fate>,
}

impl Call {
    /// Forwards data in both directions until one side closes the connection, or until the worker
    /// is killed.
    async fn pass(mut self, mut client: TcpStream, server: Target) -> std::io::Result<()> {
        let mut server = server.connect().await?;
        let (mut requests, mut responses) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut death = None;
        loop {
            tokio::select! {
                read = client.read(&mut requests) => {
                    let bytes = &requests[..read?];
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    for piece in self.parser.parse_requests(bytes) {
                        if piece.begins.is_some() && death.is_some() || self.fate.is_over() {
                            // The worker is killed at the response to its previous request, so
                            // later requests are not forwarded.
                            break;
                        }
                        if let Some(name) = &piece.begins {
                            death = self.fate.count_request(format!("{}: {name}", self.name));
                        }
                        if let Some(Moment::Unsaid | Moment::Torn) = death {
                            if death == Some(Moment::Torn) {
                                server.write_all(&piece.bytes[..piece.bytes.len() / 2]).await?;
                            }
                            self.fate.strike();
                            return drain(client).await;
                        }
                        self.parser.pass(&piece);
                        server.write_all(&piece.bytes).await?;
                    }
                }
                read = server.read(&mut responses) => {
                    let bytes = &responses[..read?];
                    self.parser.answer(bytes);
                    // The end of the connection also counts as a response of the server.
                    let is_answered = self.parser.is_answered() || bytes.is_empty();
                    match death {
                        Some(_) if is_answered => self.fate.seal(),
                        _ if self.fate.is_over() => return drain(client).await,
                        _ if bytes.is_empty() => return Ok(()),
                        _ => {}
                    }
                    if death != Some(Moment::Unheard) {
                        client.write_all(bytes).await?;
                    }
                    if death.is_some() && is_answered {
                        self.fate.strike();
                        return drain(client).await;
                    }
                }
            }
        }
    }
}

/// Reads and drops data until the worker is killed, so that the worker does not see the end of the
/// connection before it is killed.
async fn drain(mut client: TcpStream) -> std::io::Result<()> {
    tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
    Ok(())
}
