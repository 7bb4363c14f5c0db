//! The clients of the external services.

use std::net::SocketAddr;

use anyhow::Result;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message as Mail, Tokio1Executor};
use reqwest::{Client, StatusCode};

use crate::outside::{Booking, Charge, Order};

/// The client of an external service.
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

    /// Charges a card at the gateway.
    pub async fn charge(&self, order: &Order, key: &str) -> Result<Charge> {
        let url = format!("http://{}/charges", self.address);
        let request = self
            .http
            .post(url)
            .header("Idempotency-Key", key)
            .json(order);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Books a parcel at the carrier.
    pub async fn book(&self, booking: &Booking) -> Result<Booking> {
        let request = self
            .http
            .post(format!("http://{}/bookings", self.address))
            .json(booking);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Returns the booking at the carrier with this reference, or `None`.
    pub async fn find(&self, reference: &str) -> Result<Option<Booking>> {
        let url = format!("http://{}/bookings/{reference}", self.address);
        let response = self.http.get(url).send().await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(response.error_for_status()?.json().await?))
    }

    /// Sends a mail with this subject.
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
