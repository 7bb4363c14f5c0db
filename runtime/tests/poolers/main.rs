//! Tests of proxies that change what the server gets: poolers that give each transaction another
//! process of the server, and proxies that remove comments.

mod comments;
mod links;
