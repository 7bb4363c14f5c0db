//! How the workers speak to the world outside.

use std::net::SocketAddr;

use anyhow::Result;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message as Mail, Tokio1Executor};
use reqwest::{Client, StatusCode};

use crate::stories::outside::{Booking, Charge, Order};

/// The other side, whoever it is.
#[derive(Clone)]
pub struct Outside {
    address: SocketAddr,
    http: Client,
}

impl Outside {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            http: Client::new(),
        }
    }

    /// Charges at the gateway.
    pub async fn charge(&self, order: &Order, key: &str) -> Result<Charge> {
        let url = format!("http://{}/charges", self.address);
        let request = self
            .http
            .post(url)
            .header("Idempotency-Key", key)
            .json(order);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Books at the carrier.
    pub async fn book(&self, booking: &Booking) -> Result<Booking> {
        let request = self
            .http
            .post(format!("http://{}/bookings", self.address))
            .json(booking);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Asks the carrier what was booked under this name.
    pub async fn find(&self, reference: &str) -> Result<Option<Booking>> {
        let url = format!("http://{}/bookings/{reference}", self.address);
        let answer = self.http.get(url).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(answer.error_for_status()?.json().await?))
    }

    /// Sends a mail.
    pub async fn send(&self, subject: &str) -> Result<()> {
        let mail = Mail::builder()
            .from("shop@example.org".parse()?)
            .to("customer@example.org".parse()?)
            .subject(subject)
            .body("Your parcel is on its way.\n".to_owned())?;
        let transport =
            AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(self.address.ip().to_string())
                .port(self.address.port())
                .build();
        transport.send(mail).await?;
        Ok(())
    }
}
