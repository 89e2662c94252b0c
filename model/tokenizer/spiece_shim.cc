/* The only C++ of the project: sentencepiece has no C interface. Every entry catches everything, also std::bad_alloc,
 * and turns it into a code; no C++ type and no exception leaves this file. The library's own logging is turned off:
 * what it has to say comes back as a status. */
#include "spiece_shim.h"

#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include <sentencepiece_processor.h>

namespace sentencepiece::logging {
/* Exported by the library but not declared in its public header. 3: fatal only. */
void SetMinLogLevel(int level);
} // namespace sentencepiece::logging

struct nw_spiece {
    sentencepiece::SentencePieceProcessor processor;
    const char                           *name;
};

namespace {

nw_code said(const nw_spiece *spiece, const sentencepiece::util::Status &status, nw_error *err)
{
    return nw_fail(err, NW_E_TOKENIZER, 0, "%s: %s", spiece->name, status.error_message());
}

/* The code of the exception at hand; call it in a catch (...) only. */
nw_code caught(const char *name, nw_error *err)
{
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return nw_fail(err, NW_E_MEMORY, 0, "%s: the tokenizer cannot allocate memory", name);
    } catch (const std::exception &e) {
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: %s", name, e.what());
    } catch (...) {
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the tokenizer failed", name);
    }
}

} // namespace

nw_code nw_spiece_open(const char *name, const void *bytes, size_t len, nw_spiece **ret_spiece, nw_error *err)
{
    nw_spiece *spiece = nullptr;
    nw_code    rc = NW_OK;
    try {
        sentencepiece::logging::SetMinLogLevel(3);
        spiece = new nw_spiece{{}, name};
        const auto status =
            spiece->processor.LoadFromSerializedProto(std::string_view(static_cast<const char *>(bytes), len));
        if (!status.ok())
            rc = said(spiece, status, err);
    } catch (...) {
        rc = caught(name, err);
    }
    if (rc != NW_OK)
        spiece = nw_spiece_close(spiece);
    else
        *ret_spiece = spiece;
    return rc;
}

nw_spiece *nw_spiece_close(nw_spiece *spiece)
{
    delete spiece;
    return nullptr;
}

nw_code nw_spiece_encode(const nw_spiece *spiece, const char *text, size_t len, uint32_t *ids, size_t cap,
                         size_t *ret_count, nw_error *err)
{
    try {
        std::vector<int> got;
        const auto       status = spiece->processor.Encode(std::string_view(text, len), &got);
        if (!status.ok())
            return said(spiece, status, err);
        for (size_t i = 0; i < got.size(); i++) {
            if (got[i] < 0)
                return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the tokenizer gave a negative id", spiece->name);
            if (i < cap)
                ids[i] = static_cast<uint32_t>(got[i]);
        }
        *ret_count = got.size();
        return NW_OK;
    } catch (...) {
        return caught(spiece->name, err);
    }
}

nw_code nw_spiece_unknown(const nw_spiece *spiece, const char *text, size_t len, uint32_t unk_id,
                          nw_spiece_unknown_fn fn, void *user, nw_error *err)
{
    try {
        sentencepiece::ImmutableSentencePieceText got;
        const auto status = spiece->processor.Encode(std::string_view(text, len), got.mutable_proto());
        if (!status.ok())
            return said(spiece, status, err);
        for (size_t i = 0; i < got.pieces_size(); i++) {
            const auto piece = got.pieces(static_cast<int>(i));
            if (piece.id() == unk_id)
                fn(user, piece.piece().data(), piece.piece().size());
        }
        return NW_OK;
    } catch (...) {
        return caught(spiece->name, err);
    }
}
