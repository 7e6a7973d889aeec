//! ClientHellos made by hand: every field and every extension as the test wants it.

/// Extension numbers used here (IANA "TLS ExtensionType Values").
pub(crate) const SERVER_NAME: u16 = 0;
pub(crate) const SUPPORTED_GROUPS: u16 = 10;
pub(crate) const KEY_SHARE: u16 = 51;

/// A hello before it is encoded.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) session_id: Vec<u8>,
    pub(crate) cipher_suites: Vec<u8>,
    pub(crate) compression_methods: Vec<u8>,
    /// `None` leaves out even the length of the extensions.
    pub(crate) extensions: Option<Vec<(u16, Vec<u8>)>>,
}

impl Hello {
    /// A TLS 1.3 hello without a server name.
    pub(crate) fn unnamed() -> Self {
        Self {
            version: 0x0303,
            session_id: vec![7; 32],
            cipher_suites: vec![0x13, 0x01, 0x13, 0x02],
            compression_methods: vec![0],
            extensions: Some(vec![(SUPPORTED_GROUPS, vec![0, 2, 0, 29]), (43, vec![2, 3, 4])]),
        }
    }

    /// A TLS 1.3 hello for a host.
    pub(crate) fn named(host: &str) -> Self {
        Self::unnamed().with(SERVER_NAME, server_name(host.as_bytes()))
    }

    /// With one more extension at the end.
    pub(crate) fn with(mut self, kind: u16, body: Vec<u8>) -> Self {
        self.extensions.get_or_insert_default().push((kind, body));
        self
    }

    /// With the key share of X25519MLKEM768 (group 0x11ec: 1216 bytes) at the end.
    pub(crate) fn with_post_quantum_share(self) -> Self {
        let mut body = Vec::new();
        vector16(&mut body, |shares| {
            shares.extend_from_slice(&0x11ec_u16.to_be_bytes());
            vector16(shares, |share| share.extend((0..1216).map(|i| i as u8)));
        });
        self.with(KEY_SHARE, body)
    }

    /// The handshake message, header included.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut body = self.version.to_be_bytes().to_vec();
        body.extend_from_slice(&[0x5a; 32]);
        body.push(self.session_id.len() as u8);
        body.extend_from_slice(&self.session_id);
        vector16(&mut body, |out| out.extend_from_slice(&self.cipher_suites));
        body.push(self.compression_methods.len() as u8);
        body.extend_from_slice(&self.compression_methods);
        if let Some(extensions) = &self.extensions {
            vector16(&mut body, |out| {
                for (kind, extension) in extensions {
                    out.extend_from_slice(&kind.to_be_bytes());
                    vector16(out, |out| out.extend_from_slice(extension));
                }
            });
        }
        let mut message = vec![1];
        message.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    /// The message in records of at most `size` bytes.
    pub(crate) fn records(&self, size: usize) -> Vec<u8> {
        records(&self.message(), size)
    }
}

/// The body of a server_name extension with one host name.
pub(crate) fn server_name(host: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    vector16(&mut body, |list| {
        list.push(0);
        vector16(list, |out| out.extend_from_slice(host));
    });
    body
}

/// A handshake message in records of at most `size` bytes.
pub(crate) fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for fragment in message.chunks(size) {
        out.extend_from_slice(&[22, 3, 1]);
        vector16(&mut out, |out| out.extend_from_slice(fragment));
    }
    out
}

/// Appends what `fill` appends, with its length before it.
pub(crate) fn vector16(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    fill(out);
    let len = u16::try_from(out.len() - at - 2).expect("fits 16 bits");
    out[at..at + 2].copy_from_slice(&len.to_be_bytes());
}
