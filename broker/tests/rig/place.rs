//! Where a broker is, and how to come in: over TLS with a certificate of one's own, or over plain TCP.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use muster_broker::{Broker, BrokerLimits, Config, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::TlsConnector;

use super::wire::Version;

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// An authority, and the certificates that it has issued.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
    clients: Mutex<HashMap<String, Arc<ClientConfig>>>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key), clients: Mutex::default() }
    }

    pub(crate) fn issue(&self, common_name: &str) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(1975, 1, 1), date_time_ymd(4096, 1, 1));
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    pub(crate) fn tls(&self) -> Tls {
        let own = self.issue("broker");
        Tls { authority: self.certificate.clone(), certificate: own.certificate, key: own.key }
    }

    /// A client's side of TLS with the certificate of `common_name`.
    pub(crate) fn client(&self, common_name: &str) -> Arc<ClientConfig> {
        let mut clients = self.clients.lock().unwrap();
        let config = clients.entry(common_name.to_owned()).or_insert_with(|| {
            let pair = self.issue(common_name);
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
                )
                .unwrap();
            Arc::new(config)
        });
        Arc::clone(config)
    }
}

/// A connection's bytes.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Where a broker is.
#[derive(Clone)]
pub(crate) struct Place {
    /// Where MQTT 3.1.1 is spoken.
    pub(crate) v4: SocketAddr,
    /// Where MQTT 5 is.
    pub(crate) v5: SocketAddr,
    /// Nobody, if it speaks plain TCP.
    pub(crate) authority: Option<Arc<Authority>>,
}

impl Place {
    pub(crate) fn address(&self, version: Version) -> SocketAddr {
        match version {
            Version::V4 => self.v4,
            Version::V5 => self.v5,
        }
    }

    /// A TCP connection, and nothing said over it.
    pub(crate) async fn touch(&self, version: Version) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_nodelay(true)?;
        socket.connect(self.address(version)).await
    }

    /// A connection as `common_name`.
    pub(crate) async fn dial(&self, version: Version, common_name: &str) -> std::io::Result<Box<dyn Bytes>> {
        self.dress(self.touch(version).await?, common_name).await
    }

    /// Puts TLS over a connection, where the broker wants it.
    pub(crate) async fn dress(&self, stream: TcpStream, common_name: &str) -> std::io::Result<Box<dyn Bytes>> {
        let Some(authority) = &self.authority else { return Ok(Box::new(stream)) };
        let connector = TlsConnector::from(authority.client(common_name));
        Ok(Box::new(connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?))
    }
}

/// The embedded broker, in this process.
pub(crate) struct Ours {
    pub(crate) broker: Broker,
    pub(crate) place: Place,
}

impl Ours {
    pub(crate) async fn start(limits: BrokerLimits) -> Self {
        Self::start_with(config(&Arc::new(Authority::new()), limits)).await
    }

    pub(crate) async fn start_with((config, authority): (Config, Arc<Authority>)) -> Self {
        let broker = Broker::start(config).await.unwrap();
        let address = broker.local_addr();
        Self { broker, place: Place { v4: address, v5: address, authority: Some(authority) } }
    }
}

/// What the embedded broker needs to know, with a certificate of this authority.
pub(crate) fn config(authority: &Arc<Authority>, limits: BrokerLimits) -> (Config, Arc<Authority>) {
    (broker_config(authority.tls(), limits, None), Arc::clone(authority))
}

/// The same, for who has a certificate, and perhaps a folder.
pub(crate) fn broker_config(tls: Tls, limits: BrokerLimits, store: Option<PathBuf>) -> Config {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Config { store, limits, ..Config::new(listen, tls) }
}

/// An address that was free a moment ago, for those who cannot say which one they took.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
