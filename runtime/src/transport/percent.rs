//! Percent-encoding of URLs.

/// Decodes sequences such as `%40`. Returns `None` if the encoding is invalid.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digits = str::from_utf8(digits)
            .ok()
            .filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn encoded_bytes_are_decoded_and_others_stay() {
        assert_eq!(decode("a%40b%2Fc%25 ü").as_deref(), Some("a@b/c% ü"));
        assert_eq!(decode("").as_deref(), Some(""));
        for wrong in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
