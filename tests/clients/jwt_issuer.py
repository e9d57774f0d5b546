"""An issuer of tokens over PyJWT: reads one JSON object a line, and answers each with one.

{"keys": ID} makes a key of each type, whose ids begin with ID, and answers with the key set.
{"alg": ..., "kid": ..., "claims": {...}} answers with a token; the key is the one with this id.
"""

import json
import sys

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

KEYS = {}


def make(name):
    made = {
        "rsa": (rsa.generate_private_key(65537, 2048), RSAAlgorithm),
        "p256": (ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
        "p384": (ec.generate_private_key(ec.SECP384R1()), ECAlgorithm),
        "ed": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
    }
    public = []
    for kind, (key, algorithm) in made.items():
        kid = f"{name}-{kind}"
        KEYS[kid] = key
        public.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    return {"keys": public}


for line in sys.stdin:
    wish = json.loads(line)
    if "keys" in wish:
        answer = make(wish["keys"])
    else:
        key = KEYS[wish["kid"]]
        headers = {"kid": wish["kid"]}
        answer = jwt.encode(wish["claims"], key, algorithm=wish["alg"], headers=headers)
    print(json.dumps(answer), flush=True)
